// Documents of an engine: who may use them, how they change, what of them survives, and that those
// who wait for one get it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "paging/document_file_format.h"
#include "tests/faulty_files.h"
#include "tests/temp_folder.h"
#include "tests/tiny_engine.h"

namespace pagezip {
namespace {

using testing::HasSubstr;
using State = DocumentTask::State;

class EngineDocumentsTest : public testing::TestWithParam<const char*>, protected TinyWorld {
 protected:
  EngineDocumentsTest() : TinyWorld(GetParam()) {}

  DocumentRequest document(const std::string& id, int64_t length = 60, double ratio = 0.5) const {
    DocumentRequest d;
    d.tenant = "a";
    d.listing.id = id;
    d.prefix = tokens(5, 1);
    d.context = tokens(length, std::hash<std::string>()(id));
    d.prompts = prompts();
    d.versions = {{ratio, false, 0}};
    return d;
  }
  GenerateRequest question(const std::string& id,
                           std::optional<double> ratio = std::nullopt) const {
    GenerateRequest r;
    r.tenant = "a";
    r.document = id;
    r.keep_ratio = ratio;
    r.prompt = tokens(4, 9);
    r.output_max = 6;
    r.ignore_end = true;
    return r;
  }
  // The tokens of the answer, or what was said instead.
  std::string finish(Engine& e, const std::shared_ptr<OutputStream>& stream) const {
    drive(e);
    std::string text;
    for (const OutputEvent& event : read(*stream)) {
      if (event.refusal) return "refused: " + event.refusal->message;
      if (event.token) text += std::to_string(*event.token) + " ";
    }
    EXPECT_TRUE(stream->done());
    return text;
  }
  std::string ask(Engine& e, const GenerateRequest& request) const {
    return finish(e, e.submit(request));
  }
  void make(Engine& e, const DocumentRequest& request) const {
    const auto task = e.create_document(request);
    drive(e);
    ASSERT_EQ(task->status().state, State::kDone) << task->status().error;
  }
  template <typename Future>
  static auto get(Engine& e, Future future) {
    drive(e);
    return future.get();
  }
  DocumentStore::Info info(Engine& e, const std::string& id) const {
    return get(e, e.document({"a", {}}, id)).value().stored;
  }
  static void expect_clean(Engine& e) {
    EXPECT_EQ(e.store().audit(), "");
    for (const std::string& id : e.store().ids()) e.store().drop(id);
    e.index().clear();
    EXPECT_EQ(e.pool().blocks_in_use(), 0);
    EXPECT_EQ(e.pool().blocks_reserved(), 0);
  }
  std::string folder() {
    options.folder = folder_.emplace().path();
    return options.folder;
  }

  const Requester owner_{"a", {}};
  std::optional<TempFolder> folder_;
};

TEST_P(EngineDocumentsTest, ScopesSayWhoMayUseADocument) {
  const auto e = engine();
  DocumentRequest shared = document("shared");
  shared.listing.scope = {Scope::Kind::kGroup, "law"};
  make(*e, shared);
  make(*e, document("own"));
  EXPECT_THAT(ask(*e, question("shared")), HasSubstr("no document shared"));
  GenerateRequest member = question("shared");
  member.tenant = "b";
  member.groups = {"art", "law"};
  EXPECT_THAT(ask(*e, member), testing::Not(HasSubstr("refused")));
  member.document = "own";
  EXPECT_THAT(ask(*e, member), HasSubstr("no document own"));
  EXPECT_EQ(get(*e, e->documents({"b", {"law"}})).size(), 1u);
  EXPECT_EQ(get(*e, e->documents({"a", {"law"}})).size(), 2u);
  EXPECT_FALSE(get(*e, e->document({"b", {}}, "own")).has_value());
  EXPECT_EQ(get(*e, e->change_document({"b", {}}, "own", {"stolen", {}, {}, {}})),
            ChangeAnswer::kNotFound);
  EXPECT_FALSE(get(*e, e->drop_document({"b", {"law"}}, "own")));
  EXPECT_TRUE(get(*e, e->drop_document({"b", {"law"}}, "shared")));
  expect_clean(*e);
}

// Two readers of one document must not be able to see, by how fast an answer comes, what the other
// one asked.
TEST_P(EngineDocumentsTest, ReadersShareNoCachedQuestions) {
  const auto e = engine();
  DocumentRequest shared = document("shared");
  shared.listing.scope = {Scope::Kind::kGroup, "law"};
  make(*e, shared);
  GenerateRequest long_question = question("shared");
  long_question.groups = {"law"};
  long_question.prompt = tokens(40, 12);
  const auto cached = [&](const std::string& tenant) {
    long_question.tenant = tenant;
    const auto stream = e->submit(long_question);
    finish(*e, stream);
    return stream->usage().cached_tokens;
  };
  EXPECT_EQ(cached("a"), 0);
  EXPECT_GT(cached("a"), 0);
  EXPECT_EQ(cached("b"), 0);
  expect_clean(*e);
}

TEST_P(EngineDocumentsTest, NamesPinsAndTimesChange) {
  options.pinned_share = 0.04;
  const auto e = engine();
  DocumentRequest short_lived = document("a");
  short_lived.listing.ttl_s = 100;
  short_lived.listing.name = "first";
  make(*e, short_lived);
  EXPECT_EQ(get(*e, e->change_document(owner_, "a", {"second", 50, true, {}})),
            ChangeAnswer::kChanged);
  DocumentStore::Info now = info(*e, "a");
  EXPECT_EQ(now.listing.name, "second");
  EXPECT_EQ(now.listing.created_s, clock.now_s);
  EXPECT_TRUE(now.listing.pinned);
  make(*e, document("large", 400, 1));
  ASSERT_GT(info(*e, "large").versions[0].blocks + now.versions[0].blocks,
            e->store().limits().pinned_blocks);
  EXPECT_EQ(get(*e, e->change_document(owner_, "large", {{}, {}, true, {}})),
            ChangeAnswer::kNoRoomToPin);
  clock.now_s += 60;
  drive(*e);
  EXPECT_TRUE(e->store().contains("a")) << "it is pinned";
  EXPECT_EQ(get(*e, e->change_document(owner_, "a", {{}, {}, false, {}})), ChangeAnswer::kChanged);
  ++clock.now_s;
  drive(*e);
  EXPECT_FALSE(e->store().contains("a"));
  EXPECT_THROW(e->change_document(owner_, "a", {"two\nlines", {}, {}, {}}), Error);
  expect_clean(*e);
}

TEST_P(EngineDocumentsTest, TheFullVersionServesUntilTheCompressedOneIsThere) {
  options.scheduler.idle_step_us = 1;  // many small steps
  const auto e = engine();
  DocumentRequest request = document("a", 100);
  const auto task = e->create_document(request);
  std::shared_ptr<OutputStream> early;
  std::string refused;
  for (int i = 0; i < 10'000 && early == nullptr; ++i) {
    e->step();
    if (task->status().full_bytes > 0 && task->status().state == State::kWorking) {
      early = e->submit(question("a"));
      e->step();
      const auto too_early = e->submit(question("a", 0.5));
      e->step();
      refused = read(*too_early).at(0).refusal.value().message;
    }
  }
  ASSERT_NE(early, nullptr);
  EXPECT_THAT(refused, HasSubstr("not ready"));
  const std::string answer = finish(*e, early);
  EXPECT_EQ(early->usage().keep_ratio, 1);
  const auto late = e->submit(question("a"));
  EXPECT_NE(finish(*e, late), "");
  EXPECT_EQ(late->usage().keep_ratio, 0.5);
  EXPECT_EQ(info(*e, "a").versions.size(), 1u);
  // What the full version answered is what a document that keeps everything answers.
  request.listing.id = "full";
  request.versions.clear();
  make(*e, request);
  EXPECT_EQ(ask(*e, question("full")), answer);
  expect_clean(*e);
}

TEST_P(EngineDocumentsTest, AnotherVersionIsCutFromOneThatKeepsMore) {
  const auto e = engine();
  DocumentRequest request = document("a", 120, 0.6);
  make(*e, request);
  const Stats before = e->stats().work;
  const auto task = e->add_version(owner_, "a", prompts(), {0.3, false, 0});
  drive(*e);
  ASSERT_EQ(task->status().state, State::kDone) << task->status().error;
  EXPECT_EQ(e->stats().work.rows_document, before.rows_document) << "no prefill";
  EXPECT_EQ(e->stats().work.rows_score, before.rows_score) << "no scoring";
  // More than what is there: the model has to read the document again, but needs no scores.
  const auto more = e->add_version(owner_, "a", prompts(), {0.8, true, 0});
  drive(*e);
  ASSERT_EQ(more->status().state, State::kDone) << more->status().error;
  EXPECT_EQ(e->stats().work.rows_score, before.rows_score);
  EXPECT_EQ(info(*e, "a").versions.size(), 3u);
  request.listing.id = "b";
  request.versions = {{0.3, false, 0}, {0.8, true, 0}};
  make(*e, request);
  for (const double ratio : {0.3, 0.8}) {
    EXPECT_EQ(ask(*e, question("a", ratio)), ask(*e, question("b", ratio))) << ratio;
  }
  const auto twice = e->add_version(owner_, "a", prompts(), {0.3, false, 0});
  const auto unknown = e->add_version({"b", {}}, "a", prompts(), {0.3, false, 0});
  drive(*e);
  EXPECT_THAT(twice->status().error, HasSubstr("already"));
  EXPECT_THAT(unknown->status().error, HasSubstr("no document a"));
  EXPECT_THROW(e->add_version(owner_, "a", prompts(), {0, false, 0}), Error);
  expect_clean(*e);
}

TEST_P(EngineDocumentsTest, DocumentsSurviveTheEngine) {
  folder();
  std::string compressed;
  std::string full;
  {
    const auto e = engine();
    DocumentRequest request = document("a");
    request.keep_full = true;
    request.listing.name = "kept";
    make(*e, request);
    make(*e, document("dropped"));
    EXPECT_TRUE(get(*e, e->drop_document(owner_, "dropped")));
    compressed = ask(*e, question("a"));
    full = ask(*e, question("a", 1));
    get(*e, e->change_document(owner_, "a", {"renamed", 1000, {}, {{{"a", "b"}}}}));
    e->create_document(document("late"));
    drive(*e);  // done, but maybe not written yet
  }
  const auto e = engine();
  EXPECT_TRUE(e->findings().empty());
  EXPECT_EQ(e->store().ids(), (std::vector<std::string>{"a", "late"}));
  const DocumentStore::Info there = info(*e, "a");
  EXPECT_EQ(there.listing.name, "renamed");
  EXPECT_EQ(there.listing.metadata, (std::map<std::string, std::string>{{"a", "b"}}));
  EXPECT_EQ(there.listing.ttl_s, 1000);
  ASSERT_EQ(there.versions.size(), 2u);
  EXPECT_FALSE(there.versions[0].resident);
  EXPECT_EQ(ask(*e, question("a")), compressed);
  EXPECT_EQ(ask(*e, question("a", 1)), full);
  EXPECT_EQ(e->stats().work.rows_document, 0) << "nothing is computed again";
  // The scores are in the file.
  const auto task = e->add_version(owner_, "a", prompts(), {0.25, false, 0});
  drive(*e);
  EXPECT_EQ(task->status().state, State::kDone) << task->status().error;
  EXPECT_EQ(e->stats().work.rows_document, 0);
  expect_clean(*e);
}

TEST_P(EngineDocumentsTest, DamagedFilesAreRefusedAndForgotten) {
  const std::string path = folder();
  {
    const auto e = engine();
    make(*e, document("a"));
    make(*e, document("b"));
  }
  {
    std::fstream file(path + "/a.1.pgz", std::ios::in | std::ios::out | std::ios::binary);
    ASSERT_TRUE(file.is_open());
    file.seekp(-200, std::ios::end);
    file.put('x');
  }
  const auto e = engine();
  EXPECT_EQ(e->store().ids().size(), 2u) << "pairs are not read at the start";
  EXPECT_THAT(ask(*e, question("a")), HasSubstr("document a is gone"));
  EXPECT_THAT(ask(*e, question("b")), testing::Not(HasSubstr("refused")));
  EXPECT_THAT(get(*e, e->take_file_errors()), testing::ElementsAre(HasSubstr("is damaged")));
  EXPECT_TRUE(std::filesystem::exists(path + "/a.1.pgz.damaged"));
  expect_clean(*e);
}

// A file may be whole and still lie: here about its scores, which are all in the first list.
void forge_scores(const std::string& path) {
  using namespace document_file;  // NOLINT(google-build-using-namespace): its bytes are forged
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  Preamble preamble;
  file.read(reinterpret_cast<char*>(&preamble), sizeof(preamble));
  ASSERT_TRUE(file.good());
  Section& section = preamble.section[kScores];
  std::vector<std::byte> bytes(static_cast<size_t>(padded(static_cast<int64_t>(section.bytes))));
  std::vector<float> scores(section.bytes / sizeof(float));
  std::fill_n(scores.begin(), scores.size() / 4, 1.0f);
  std::memcpy(bytes.data(), scores.data(), section.bytes);
  section.hash = hash_of(bytes);
  preamble.hash = preamble_hash(preamble);
  file.seekp(0);
  file.write(reinterpret_cast<const char*>(&preamble), sizeof(preamble));
  file.seekp(-static_cast<int64_t>(bytes.size()), std::ios::end);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<int64_t>(bytes.size()));
}

TEST_P(EngineDocumentsTest, NothingIsCutByScoresOfSomethingElse) {
  const std::string path = folder();
  {
    const auto e = engine();
    make(*e, document("a"));
  }
  forge_scores(path + "/a.1.pgz");
  const auto e = engine();
  const std::string answer = ask(*e, question("a"));
  const auto task = e->add_version(owner_, "a", prompts(), {0.25, false, 0});
  drive(*e);
  // A single list is as long whatever the scores.
  const bool shows = get(*e, e->version_detail(owner_, "a", 0.5))->shape.lengths.size() > 1;
  EXPECT_THAT(task->status().error,
              HasSubstr(shows ? "aren't those that its scores would keep" : ""));
  EXPECT_EQ(ask(*e, question("a")), answer);
  expect_clean(*e);
}

TEST_P(EngineDocumentsTest, ThoseWhoWaitForADocumentGetIt) {
  folder();
  constexpr int kDocuments = 16;
  options.pool_blocks = 26 * static_cast<int64_t>(model.kv_groups().size()) + 26;
  std::vector<std::string> answers;
  const auto id = [](int i) { return "d" + std::to_string(i); };
  {
    const auto e = engine();
    for (int i = 0; i < kDocuments; ++i) {
      make(*e, document(id(i), 200));
      answers.push_back(ask(*e, question(id(i))));
    }
    EXPECT_GT(e->stats().documents.evicted, 0);
  }
  const auto e = engine();
  std::vector<std::shared_ptr<OutputStream>> streams;
  for (int i = 0; i < 40; ++i) {
    streams.push_back(e->submit(question(id(i * 5 % kDocuments))));
    if (i % 7 == 3) e->step();
  }
  e->cancel(streams[20]->id());
  drive(*e);
  for (int i = 0; i < 40; ++i) {
    if (i == 20) continue;
    EXPECT_EQ(finish(*e, streams[static_cast<size_t>(i)]),
              answers[static_cast<size_t>(i * 5 % kDocuments)])
        << i;
  }
  EXPECT_GT(e->stats().documents.restored, kDocuments - 1);
  EXPECT_EQ(e->stats().documents.dropped, 0);
  expect_clean(*e);
}

TEST_P(EngineDocumentsTest, RunsWithAThreadForTheDisk) {
  folder();
  std::string answer;
  {
    const auto e = engine();
    e->start();
    const auto task = e->create_document(document("a"));
    ASSERT_TRUE(task->wait(std::chrono::milliseconds(60'000)));
    ASSERT_EQ(task->status().state, State::kDone) << task->status().error;
    const auto stream = e->submit(question("a"));
    while (!stream->done()) {
      if (const auto event = stream->next(std::chrono::milliseconds(60'000)); event && event->token)
        answer += std::to_string(*event->token) + " ";
    }
    EXPECT_EQ(e->documents(owner_).get().size(), 1u);
    e->stop();
  }
  const auto e = engine();
  e->start();
  const auto stream = e->submit(question("a"));
  std::string again;
  while (!stream->done()) {
    if (const auto event = stream->next(std::chrono::milliseconds(60'000)); event && event->token)
      again += std::to_string(*event->token) + " ";
  }
  EXPECT_EQ(again, answer);
  e->stop();
  EXPECT_EQ(e->stats().work.rows_document, 0);
}

TEST_P(EngineDocumentsTest, AFolderThatFailsCostsOnlyTheFiles) {
  FaultyFiles faulty;
  options.folder = "folder";
  options.files = &faulty;
  const auto e = engine();
  make(*e, document("a"));
  EXPECT_TRUE(info(*e, "a").versions[0].stored);
  faulty.set_fault(FaultyFiles::Fault::kIoError, faulty.calls() + 1, true);
  make(*e, document("b"));
  EXPECT_FALSE(info(*e, "b").versions[0].stored);
  EXPECT_THAT(ask(*e, question("b")), testing::Not(HasSubstr("refused")));
  EXPECT_FALSE(get(*e, e->take_file_errors()).empty());
  expect_clean(*e);
}

INSTANTIATE_TEST_SUITE_P(Models, EngineDocumentsTest, tiny_models(), tiny_model_name);

}  // namespace
}  // namespace pagezip
