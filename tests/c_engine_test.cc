// Tier 3 of the C ABI, on a tiny model: what goes in and comes out through plain structs, and
// handles that are freed in any order.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "api/pagezip_engine.h"
#include "tests/cli_tests/tiny_model.h"
#include "tests/temp_folder.h"

namespace pagezip {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kLong = 60'000;  // ms

template <typename T>
T sized() {
  T made{};
  made.size = sizeof made;
  return made;
}

class CEngine : public ::testing::Test {
 protected:
  CEngine() {
    const std::string path = folder_.path("tiny.gguf");
    TinyModel().writer().write(path);
    EXPECT_EQ(pagezip_model_open(path.c_str(), nullptr, &model_), PAGEZIP_OK)
        << pagezip_last_error();
    options_.pool_bytes = 8 << 20;
    options_.context_max = 2000;
    options_.threads = 1;
  }
  ~CEngine() override {
    pagezip_engine_destroy(engine_);
    pagezip_model_close(model_);
  }

  void start() {
    ASSERT_EQ(pagezip_engine_create(model_, &options_, &engine_), PAGEZIP_OK)
        << pagezip_last_error();
  }
  pagezip_task* compress(const char* id, std::vector<double> ratios) {
    auto request = sized<pagezip_compress_request>();
    request.requester = &a_;
    request.id = id;
    request.text = text_.data();
    request.text_bytes = text_.size();
    request.keep_ratios = ratios.data();
    request.keep_ratio_count = ratios.size();
    pagezip_task* task = nullptr;
    EXPECT_EQ(pagezip_engine_compress(engine_, &request, &task), PAGEZIP_OK)
        << pagezip_last_error();
    return task;
  }
  static pagezip_task_status wait(pagezip_task* task) {
    auto status = sized<pagezip_task_status>();
    EXPECT_EQ(pagezip_task_wait(task, kLong, &status), PAGEZIP_OK) << pagezip_last_error();
    return status;
  }
  pagezip_generate_request request(const char* text) const {
    auto request = sized<pagezip_generate_request>();
    request.requester = &a_;
    request.text = text;
    request.text_bytes = std::string(text).size();
    request.output_max = 6;
    request.ignore_end = 1;
    return request;
  }
  pagezip_stream* submit(const pagezip_generate_request& request) {
    pagezip_stream* stream = nullptr;
    EXPECT_EQ(pagezip_engine_submit(engine_, &request, &stream), PAGEZIP_OK)
        << pagezip_last_error();
    return stream;
  }
  struct Output {
    std::vector<std::vector<int32_t>> tokens;  // of each choice
    std::vector<pagezip_finish> finish;
    std::string refusal;
    bool has_logprobs = false;
    pagezip_usage usage = sized<pagezip_usage>();
  };
  static Output read(pagezip_stream* stream, uint32_t choices = 1) {
    Output output;
    output.tokens.resize(choices);
    output.finish.resize(choices);
    for (auto event = sized<pagezip_event>();;) {
      EXPECT_EQ(pagezip_stream_next(stream, kLong, &event), PAGEZIP_OK) << pagezip_last_error();
      EXPECT_EQ(std::string(event.text).size(), event.text_bytes);
      if (event.kind == PAGEZIP_EVENT_TOKEN) {
        output.tokens[event.choice].push_back(event.token);
        output.has_logprobs = output.has_logprobs || event.logprob < 0;
      } else if (event.kind == PAGEZIP_EVENT_FINISHED) {
        output.finish[event.choice] = event.finish;
      } else if (event.kind == PAGEZIP_EVENT_REFUSED) {
        output.refusal = event.text;
      } else {
        EXPECT_EQ(event.kind, PAGEZIP_EVENT_CLOSED);
        EXPECT_EQ(pagezip_stream_get_usage(stream, &output.usage), PAGEZIP_OK);
        pagezip_stream_free(stream);
        return output;
      }
    }
  }

  static pagezip_requester requester_of(const char* tenant) {
    auto requester = sized<pagezip_requester>();
    requester.tenant = tenant;
    return requester;
  }
  struct Listed {
    std::string name;
    std::string group;
    pagezip_listed_document document;
    std::vector<pagezip_listed_version> versions;
  };
  std::map<std::string, Listed> list(const pagezip_requester& of) {
    pagezip_document_list* list = nullptr;
    EXPECT_EQ(pagezip_engine_list_documents(engine_, &of, &list), PAGEZIP_OK);
    std::map<std::string, Listed> found;
    for (size_t i = 0; i < pagezip_document_list_count(list); ++i) {
      Listed one;
      one.document = sized<pagezip_listed_document>();
      EXPECT_EQ(pagezip_document_list_get(list, i, &one.document), PAGEZIP_OK);
      one.name = one.document.name;
      one.group = one.document.group == nullptr ? "" : one.document.group;
      for (size_t v = 0; v < one.document.version_count; ++v) {
        one.versions.push_back(sized<pagezip_listed_version>());
        EXPECT_EQ(pagezip_document_list_get_version(list, i, v, &one.versions.back()), PAGEZIP_OK);
      }
      const std::string id = one.document.id;
      found[id] = std::move(one);
    }
    auto none = sized<pagezip_listed_document>();
    EXPECT_EQ(pagezip_document_list_get(list, found.size(), &none), PAGEZIP_INVALID);
    pagezip_document_list_free(list);
    return found;
  }

  const pagezip_requester a_ = requester_of("a");
  const TempFolder folder_;
  pagezip_model* model_ = nullptr;
  pagezip_engine_options options_ = sized<pagezip_engine_options>();
  pagezip_engine* engine_ = nullptr;
  std::string text_ = "one two three abc abc 123 four five six seven abc 321 two one";
};

TEST_F(CEngine, TellsAboutTheModel) {
  auto info = sized<pagezip_model_info>();
  ASSERT_EQ(pagezip_model_get_info(model_, &info), PAGEZIP_OK);
  EXPECT_EQ(info.layers, 2);
  EXPECT_EQ(info.kv_heads, 1);
  EXPECT_EQ(info.head_dim, 32);
  EXPECT_NE(info.identity[0], 0U);
  int32_t ids[100] = {};
  size_t count = 0;
  ASSERT_EQ(pagezip_model_tokenize(model_, "abc abc", 7, ids, 100, &count), PAGEZIP_OK);
  ASSERT_GT(count, 1U);
  size_t again = 0;
  int32_t first = -1;
  ASSERT_EQ(pagezip_model_tokenize(model_, "abc abc", 7, &first, 1, &again), PAGEZIP_OK);
  EXPECT_EQ(again, count);
  EXPECT_EQ(first, ids[0]);
}

TEST_F(CEngine, MakesADocumentAndAnswersOnIt) {
  start();
  pagezip_task* task = compress("doc", {0.5, 0.9});
  const pagezip_task_status status = wait(task);
  EXPECT_EQ(status.state, PAGEZIP_TASK_DONE) << status.error;
  EXPECT_GT(status.full_bytes, 0);
  EXPECT_GT(status.bytes, 0);
  pagezip_task_free(task);

  auto question = request("Who?");
  question.document = "doc";
  const Output answer = read(submit(question));
  EXPECT_EQ(answer.tokens[0].size(), 6U);
  EXPECT_EQ(answer.finish[0], PAGEZIP_FINISH_LENGTH);
  EXPECT_EQ(answer.usage.keep_ratio, 0.5);
  EXPECT_GT(answer.usage.document_tokens, 10);
  EXPECT_EQ(read(submit(question)).tokens, answer.tokens);
  question.keep_ratio = 1;
  EXPECT_EQ(read(submit(question)).usage.keep_ratio, 0.9);
  const auto b = requester_of("b");
  question.requester = &b;
  EXPECT_THAT(read(submit(question)).refusal, HasSubstr("doc")) << "another tenant's";
  ASSERT_EQ(pagezip_engine_drop_document(engine_, &a_, "doc"), PAGEZIP_OK);
  question.requester = &a_;
  EXPECT_THAT(read(submit(question)).refusal, HasSubstr("doc"));

  auto stats = sized<pagezip_stats>();
  ASSERT_EQ(pagezip_engine_get_stats(engine_, &stats), PAGEZIP_OK);
  EXPECT_GT(stats.score_rows, 0);
  EXPECT_GT(stats.document_rows, 0);
  EXPECT_GT(stats.decode_rows, 10);
}

TEST_F(CEngine, ListsAndChangesDocuments) {
  start();
  pagezip_task* task = compress("doc", {0.5});
  EXPECT_EQ(wait(task).state, PAGEZIP_TASK_DONE);
  pagezip_task_free(task);
  ASSERT_EQ(pagezip_engine_add_version(engine_, &a_, "doc", 0.2, &task), PAGEZIP_OK);
  EXPECT_EQ(wait(task).state, PAGEZIP_TASK_DONE);
  pagezip_task_free(task);
  auto stats = sized<pagezip_stats>();
  ASSERT_EQ(pagezip_engine_get_stats(engine_, &stats), PAGEZIP_OK);
  auto change = sized<pagezip_document_change>();
  const int64_t ttl = 600;
  const int32_t pinned = 1;
  change.name = "Law";
  change.ttl_s = &ttl;
  change.pinned = &pinned;
  ASSERT_EQ(pagezip_engine_change_document(engine_, &a_, "doc", &change), PAGEZIP_OK);
  const Listed doc = list(a_)["doc"];
  EXPECT_EQ(doc.name, "Law");
  EXPECT_EQ(doc.group, "");
  EXPECT_EQ(doc.document.ttl_s, 600);
  EXPECT_EQ(doc.document.pinned, 1);
  EXPECT_EQ(doc.document.working, 0);
  EXPECT_EQ(doc.document.has_scores, 1);
  EXPECT_GT(doc.document.created_s, 0);
  ASSERT_EQ(doc.versions.size(), 2U);
  EXPECT_EQ(doc.versions[0].keep_ratio, 0.2);
  EXPECT_EQ(doc.versions[1].keep_ratio, 0.5);
  EXPECT_EQ(doc.versions[0].resident, 1);
  EXPECT_LE(doc.versions[0].bytes, doc.versions[1].bytes);

  const auto b = requester_of("b");
  EXPECT_TRUE(list(b).empty());
  EXPECT_EQ(pagezip_engine_change_document(engine_, &b, "doc", &change), PAGEZIP_NOT_FOUND);
  change.name = "a\nb";
  EXPECT_EQ(pagezip_engine_change_document(engine_, &a_, "doc", &change), PAGEZIP_INVALID);
}

TEST_F(CEngine, GroupsShareDocumentsAndExtendThem) {
  start();
  const char* groups[] = {"law", "all"};
  auto member = requester_of("a");
  member.groups = groups;
  member.group_count = 2;
  auto other = requester_of("b");
  other.groups = groups + 1;
  other.group_count = 1;
  auto shared = sized<pagezip_compress_request>();
  shared.requester = &member;
  shared.group = "other";
  shared.id = "shared";
  shared.text = text_.data();
  shared.text_bytes = text_.size();
  pagezip_task* task = nullptr;
  EXPECT_EQ(pagezip_engine_compress(engine_, &shared, &task), PAGEZIP_INVALID) << "not its group";
  shared.group = "all";
  ASSERT_EQ(pagezip_engine_compress(engine_, &shared, &task), PAGEZIP_OK);
  EXPECT_EQ(wait(task).state, PAGEZIP_TASK_DONE);
  pagezip_task_free(task);
  EXPECT_EQ(list(other)["shared"].group, "all");
  EXPECT_TRUE(list(a_).empty()) << "asked without the group";

  auto more = sized<pagezip_compress_request>();
  more.requester = &other;
  more.id = "more";
  more.parent = "shared";
  more.text = text_.data();
  more.text_bytes = text_.size();
  ASSERT_EQ(pagezip_engine_compress(engine_, &more, &task), PAGEZIP_OK);
  const pagezip_task_status status = wait(task);
  EXPECT_EQ(status.state, PAGEZIP_TASK_DONE) << status.error;
  pagezip_task_free(task);
  const auto documents = list(other);
  ASSERT_EQ(documents.size(), 2U);
  auto question = request("Who?");
  question.requester = &other;
  question.document = "more";
  EXPECT_EQ(read(submit(question)).usage.document_tokens,
            documents.at("shared").document.tokens + documents.at("more").document.tokens);
}

TEST_F(CEngine, DocumentsSurviveInTheFolder) {
  const std::string folder = folder_.path("documents");
  options_.folder = folder.c_str();
  pagezip_engine* none = nullptr;
  EXPECT_NE(pagezip_engine_create(model_, &options_, &none), PAGEZIP_OK) << "no such folder";
  std::filesystem::create_directory(folder);
  start();
  pagezip_task* task = compress("doc", {0.5});
  EXPECT_EQ(wait(task).state, PAGEZIP_TASK_DONE);
  pagezip_task_free(task);
  auto question = request("Who?");
  question.document = "doc";
  const Output answer = read(submit(question));
  pagezip_engine_destroy(engine_);
  engine_ = nullptr;
  options_.driven = 1;  // the list makes the steps that it needs
  start();
  const Listed found = list(a_)["doc"];
  ASSERT_EQ(found.versions.size(), 1U);
  EXPECT_EQ(found.versions[0].stored, 1);
  EXPECT_EQ(found.versions[0].resident, 0);
  pagezip_stream* stream = submit(question);
  auto usage = sized<pagezip_usage>();
  for (int32_t worked = 1; worked != 0 || usage.document_tokens == 0;) {
    ASSERT_EQ(pagezip_engine_step(engine_, &worked), PAGEZIP_OK);
    ASSERT_EQ(pagezip_stream_get_usage(stream, &usage), PAGEZIP_OK);
  }
  EXPECT_EQ(read(stream).tokens, answer.tokens);
  auto stats = sized<pagezip_stats>();
  ASSERT_EQ(pagezip_engine_get_stats(engine_, &stats), PAGEZIP_OK);
  EXPECT_EQ(stats.document_rows, 0);
}

TEST_F(CEngine, ChoicesSamplingStopsAndLogprobs) {
  start();
  auto several = request("abc");
  several.choices = 3;
  several.temperature = 1;
  several.seed = 5;
  several.logprobs = 1;
  const Output sampled = read(submit(several), 3);
  for (const std::vector<int32_t>& tokens : sampled.tokens) {
    EXPECT_EQ(tokens.size(), 6U);
  }
  EXPECT_NE(sampled.tokens[0], sampled.tokens[1]);
  EXPECT_TRUE(sampled.has_logprobs);
  several.choices = 1;
  EXPECT_EQ(read(submit(several)).tokens[0], sampled.tokens[0]) << "choice k has seed + k";

  auto tokens = request("");
  tokens.text_bytes = 0;
  const int32_t ids[] = {1, 2, 3};
  tokens.tokens = ids;
  tokens.token_count = 3;
  EXPECT_EQ(read(submit(tokens)).usage.prompt_tokens, 3);
  const char* stops[] = {""};
  tokens.stops = stops;
  tokens.stop_count = 1;
  pagezip_stream* stream = nullptr;
  EXPECT_EQ(pagezip_engine_submit(engine_, &tokens, &stream), PAGEZIP_INVALID);
}

TEST_F(CEngine, HandlesMayBeFreedInAnyOrder) {
  start();
  auto endless = request("abc");
  endless.output_max = 1500;
  pagezip_stream* cancelled = submit(endless);
  pagezip_stream* left = submit(endless);
  pagezip_stream_free(submit(endless));
  pagezip_task* task = compress("doc", {0.5});
  pagezip_task_free(compress("doc2", {0.5}));
  pagezip_stream_cancel(cancelled);
  EXPECT_EQ(read(cancelled).finish[0], PAGEZIP_FINISH_CANCELLED);
  pagezip_model_close(model_);
  model_ = nullptr;
  pagezip_engine_destroy(engine_);
  engine_ = nullptr;
  EXPECT_EQ(read(left).finish[0], PAGEZIP_FINISH_CANCELLED);
  EXPECT_NE(wait(task).state, PAGEZIP_TASK_WORKING);
  pagezip_task_cancel(task);
  pagezip_task_free(task);
}

TEST_F(CEngine, MayBeDrivenByItsHost) {
  options_.driven = 1;
  start();
  pagezip_stream* stream = submit(request("abc"));
  auto event = sized<pagezip_event>();
  ASSERT_EQ(pagezip_stream_next(stream, 0, &event), PAGEZIP_OK);
  EXPECT_EQ(event.kind, PAGEZIP_EVENT_NONE);
  int32_t worked = 1;
  while (worked != 0) {
    ASSERT_EQ(pagezip_engine_step(engine_, &worked), PAGEZIP_OK);
  }
  EXPECT_EQ(read(stream).tokens[0].size(), 6U);
}

TEST_F(CEngine, RefusesWhatCantBe) {
  pagezip_model* none = nullptr;
  EXPECT_EQ(pagezip_model_open("/nowhere.gguf", nullptr, &none), PAGEZIP_BAD_FILE);
  EXPECT_THAT(pagezip_last_error(), HasSubstr("nowhere"));
  EXPECT_EQ(pagezip_model_open(nullptr, nullptr, &none), PAGEZIP_INVALID);
  const auto refuses_options = [&](auto change) {
    pagezip_engine_options options = options_;
    change(options);
    pagezip_engine* engine = nullptr;
    EXPECT_EQ(pagezip_engine_create(model_, &options, &engine), PAGEZIP_INVALID);
  };
  refuses_options([](auto& o) { o.pool_bytes = 100; });
  refuses_options([](auto& o) { o.pool_bytes = INT64_MAX; });
  refuses_options([](auto& o) { o.pool_bytes = -1; });
  refuses_options([](auto& o) { o.page_tokens = 8; });
  refuses_options([](auto& o) { o.context_max = 1 << 30; });
  refuses_options([](auto& o) { o.threads = -1; });
  start();
  int32_t worked = 0;
  EXPECT_EQ(pagezip_engine_step(engine_, &worked), PAGEZIP_INVALID) << "it has a thread";

  auto document = sized<pagezip_compress_request>();
  pagezip_task* task = nullptr;
  EXPECT_EQ(pagezip_engine_compress(engine_, &document, &task), PAGEZIP_INVALID);
  document.id = "doc";
  EXPECT_EQ(pagezip_engine_compress(engine_, &document, &task), PAGEZIP_INVALID) << "no text";
  document.text = "abc";
  document.text_bytes = 3;
  const double ratio = 2;
  document.keep_ratios = &ratio;
  document.keep_ratio_count = 1;
  EXPECT_EQ(pagezip_engine_compress(engine_, &document, &task), PAGEZIP_INVALID);
  const auto refuses = [&](auto change) {
    auto bad = request("abc");
    change(bad);
    pagezip_stream* stream = nullptr;
    EXPECT_EQ(pagezip_engine_submit(engine_, &bad, &stream), PAGEZIP_INVALID);
    EXPECT_EQ(stream, nullptr);
  };
  const int32_t token = 1 << 30;
  refuses([](auto& r) { r.output_max = 0; });
  refuses([](auto& r) { r.temperature = -1; });
  refuses([](auto& r) { r.keep_ratio = 2; });
  refuses([](auto& r) { r.text = nullptr; });
  refuses([&](auto& r) {
    r.tokens = &token;
    r.token_count = 1;
  });
  refuses([&](auto& r) {
    r.tokens = &token;
    r.token_count = 1;
    r.text_bytes = 0;
  });
  pagezip_stream* stream = submit(request("abc"));
  EXPECT_EQ(pagezip_stream_next(stream, -1, nullptr), PAGEZIP_INVALID);
  auto event = sized<pagezip_event>();
  EXPECT_EQ(pagezip_stream_next(stream, -1, &event), PAGEZIP_INVALID);
  pagezip_stream_free(stream);
}

}  // namespace
}  // namespace pagezip
