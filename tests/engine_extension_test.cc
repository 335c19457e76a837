// Documents that extend others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <string>

#include "base/error.h"
#include "tests/temp_folder.h"
#include "tests/tiny_engine.h"

namespace pagezip {
namespace {

using testing::HasSubstr;
using State = DocumentTask::State;

class EngineExtensionTest : public testing::TestWithParam<const char*>, protected TinyWorld {
 protected:
  EngineExtensionTest() : TinyWorld(GetParam()) { options.chunk_tokens = kFirst; }

  static constexpr int64_t kFirst = 48;  // tokens of the text, and behind it
  static constexpr int64_t kSecond = 21;

  DocumentRequest document(const std::string& id, const std::vector<TokenId>& context) const {
    DocumentRequest d;
    d.tenant = "a";
    d.listing.id = id;
    d.prefix = tokens(5, 1);
    d.context = context;
    d.prompts = prompts();
    return d;
  }
  DocumentRequest extension(const std::string& id, const std::string& parent,
                            const std::vector<TokenId>& context) const {
    DocumentRequest d = document(id, context);
    d.parent = parent;
    d.prefix.clear();
    return d;
  }
  std::vector<TokenId> first() const { return tokens(kFirst, 10); }
  std::vector<TokenId> second() const { return tokens(kSecond, 11); }
  std::vector<TokenId> both() const {
    std::vector<TokenId> all = first();
    const std::vector<TokenId> rest = second();
    all.insert(all.end(), rest.begin(), rest.end());
    return all;
  }
  std::string make(Engine& e, const DocumentRequest& request) const {
    const auto task = e.create_document(request);
    drive(e);
    EXPECT_NE(task->status().state, State::kWorking);
    return task->status().error;
  }
  struct Answer {
    std::vector<TokenId> tokens;
    std::vector<float> logprobs;
    OutputUsage usage;
  };
  Answer ask(Engine& e, const std::string& id, std::optional<double> ratio = std::nullopt) const {
    GenerateRequest r;
    r.tenant = "a";
    r.document = id;
    r.keep_ratio = ratio;
    r.prompt = tokens(20, 9);
    r.output_max = 8;
    r.ignore_end = true;
    r.top_logprobs = 0;
    const auto stream = e.submit(r);
    drive(e);
    Answer answer;
    for (const OutputEvent& event : read(*stream)) {
      EXPECT_FALSE(event.refusal) << event.refusal->message;
      if (event.token) {
        answer.tokens.push_back(*event.token);
        answer.logprobs.push_back(event.logprob);
      }
    }
    answer.usage = stream->usage();
    return answer;
  }
  static void expect_clean(Engine& e) {
    EXPECT_EQ(e.store().audit(), "");
    std::vector<uint32_t> refs(static_cast<size_t>(e.pool().blocks_total()));
    e.store().count_refs(refs);
    e.index().count_refs(refs);
    EXPECT_EQ(e.pool().audit_owners(refs, 0), "");
    for (const std::string& id : e.store().ids()) e.store().drop(id);
    e.index().clear();
    EXPECT_EQ(e.pool().blocks_in_use(), 0);
  }
};

TEST_P(EngineExtensionTest, AnswersAsIfTheTextWereOne) {
  const auto e = engine();
  ASSERT_EQ(make(*e, document("one", both())), "");
  ASSERT_EQ(make(*e, document("first", first())), "");
  ASSERT_EQ(make(*e, extension("second", "first", second())), "");
  const Answer expected = ask(*e, "one");
  const Answer found = ask(*e, "second");
  EXPECT_EQ(found.tokens, expected.tokens);
  for (size_t i = 0; i < expected.logprobs.size(); ++i) {
    EXPECT_NEAR(found.logprobs[i], expected.logprobs[i], 1e-3) << i;
  }
  EXPECT_EQ(found.usage.document_tokens, 5 + kFirst + kSecond);
  EXPECT_NE(ask(*e, "first").logprobs, found.logprobs);
  expect_clean(*e);
}

TEST_P(EngineExtensionTest, IsScoredAsTheSameTextInOneDocument) {
  const auto e = engine();
  DocumentRequest one = document("one", both());
  one.versions = {{0.5, false, 0}};
  DocumentRequest behind = extension("second", "first", second());
  behind.versions = {{0.5, false, 0}};
  ASSERT_EQ(make(*e, one), "");
  ASSERT_EQ(make(*e, document("first", first())), "");
  ASSERT_EQ(make(*e, behind), "");
  const auto all = e->store().scores("one");
  const auto own = e->store().scores("second");
  ASSERT_NE(all, nullptr);
  ASSERT_NE(own, nullptr);
  ASSERT_EQ(own->tokens, kSecond);
  for (int64_t list = 0; list < int64_t{own->layers} * own->heads; ++list) {
    for (int64_t i = 0; i < kSecond; ++i) {
      const float expected = all->scores[static_cast<size_t>(list * all->tokens + kFirst + i)];
      EXPECT_NEAR(own->scores[static_cast<size_t>(list * kSecond + i)], expected, 1e-3)
          << "list " << list << ", token " << i;
    }
  }
  expect_clean(*e);
}

TEST_P(EngineExtensionTest, CompressedOnCompressedOutlivesItsParent) {
  const auto e = engine();
  DocumentRequest parent = document("first", first());
  parent.versions = {{0.4, false, 0}};
  DocumentRequest child = extension("second", "first", second());
  child.versions = {{0.4, false, 0}, {0.8, false, 0}};
  ASSERT_EQ(make(*e, parent), "");
  ASSERT_EQ(make(*e, child), "");
  const Answer before = ask(*e, "second", 0.4);
  EXPECT_EQ(before.usage.keep_ratio, 0.4);
  EXPECT_NE(ask(*e, "second", 0.8).logprobs, before.logprobs);
  auto dropped = e->drop_document({"a", {}}, "first");
  drive(*e);
  EXPECT_TRUE(dropped.get());
  e->index().clear();
  EXPECT_EQ(ask(*e, "second", 0.4).logprobs, before.logprobs);
  expect_clean(*e);
}

TEST_P(EngineExtensionTest, PlainRequestsNeverMeetIt) {
  const auto e = engine();
  ASSERT_EQ(make(*e, document("first", first())), "");
  ASSERT_EQ(make(*e, extension("second", "first", second())), "");
  GenerateRequest plain;
  plain.tenant = "a";
  plain.prompt = second();
  plain.output_max = 1;
  const auto stream = e->submit(plain);
  drive(*e);
  EXPECT_EQ(stream->usage().cached_tokens, 0);
  expect_clean(*e);
}

TEST_P(EngineExtensionTest, WhatCannotBeIsSaid) {
  const auto e = engine();
  ASSERT_EQ(make(*e, document("first", first())), "");
  EXPECT_THAT(make(*e, extension("x", "missing", second())), HasSubstr("no document missing"));
  DocumentRequest stranger = extension("x", "first", second());
  stranger.tenant = "b";
  EXPECT_THAT(make(*e, stranger), HasSubstr("no document first"));
  DocumentRequest with_prefix = extension("x", "first", second());
  with_prefix.prefix = tokens(3, 1);
  EXPECT_THROW(e->create_document(with_prefix), Error);
  EXPECT_THAT(make(*e, extension("x", "first", tokens(model.config().context_max - 10, 5))),
              HasSubstr("too long"));
  ASSERT_EQ(make(*e, extension("second", "first", second())), "");
  ASSERT_EQ(make(*e, extension("third", "second", second())), "");
  EXPECT_EQ(ask(*e, "third").tokens.size(), 8u);
  EXPECT_THAT(make(*e, extension("fourth", "third", second())), HasSubstr("make one document"));
  const auto version = e->add_version({"a", {}}, "second", {}, {0.5, false, 0});
  drive(*e);
  EXPECT_THAT(version->status().error, HasSubstr("extends another"));
  EXPECT_EQ(e->store().ids(), (std::vector<std::string>{"first", "second", "third"}));
  expect_clean(*e);
}

TEST_P(EngineExtensionTest, HasNoFile) {
  const TempFolder folder;
  options.folder = folder.path();
  {
    const auto e = engine();
    ASSERT_EQ(make(*e, document("first", first())), "");
    ASSERT_EQ(make(*e, extension("second", "first", second())), "");
  }
  const auto e = engine();
  EXPECT_EQ(e->store().ids(), (std::vector<std::string>{"first"}));
  expect_clean(*e);
}

INSTANTIATE_TEST_SUITE_P(Models, EngineExtensionTest, tiny_models(), tiny_model_name);

}  // namespace
}  // namespace pagezip
