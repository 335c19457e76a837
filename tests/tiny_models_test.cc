// Whole models against transformers: tests/data/make_tiny_models.py makes them and its numbers.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/prng.h"
#include "engine/model_identity.h"
#include "engine/pipeline.h"
#include "kernels/kernels.h"
#include "paging/document_file.h"
#include "tests/gguf_writer.h"
#include "tests/temp_folder.h"

namespace pagezip {
namespace {

using ::testing::HasSubstr;

const std::string kFolder = std::string(PAGEZIP_SOURCE_DIR) + "/tests/data/tiny/";

struct Backend {
  const char* name;
  const Kernels& (*kernels)();
};

struct Case {
  const char* model;
  Backend backend;
};

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  std::string name = std::string(info.param.model) + "_" + info.param.backend.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const char* model : {"llama-gqa3", "llama-rope3", "llama-linear", "qwen2-gqa7", "qwen3",
                            "gemma3-scaled", "gemma3-plain"}) {
    cases.push_back({model, {"cpu", cpu_kernels}});
    cases.push_back({model, {"reference", reference_kernels}});
  }
  return cases;
}

class TinyModelTest : public ::testing::TestWithParam<Case> {
 protected:
  // Logits have a spread of 3 to 6 and come from float32; both sides round differently.
  static constexpr double kTolerance = 1e-4;
  static constexpr int64_t kPoolBlocks = 256;

  void SetUp() override {
    std::ifstream file(kFolder + GetParam().model + ".json");
    ASSERT_TRUE(file.good());
    expected_ = nlohmann::json::parse(file);
    tokens_ = expected_["tokens"].get<std::vector<TokenId>>();
  }
  void TearDown() override { RecordProperty("worst_difference", fmt::format("{:.2g}", worst_)); }

  Pipeline pipeline(int64_t rows) const {
    PipelineOptions options;
    options.kv_type = KvType::kF32;
    options.prefill_rows = rows;
    return {model_, kernels_, ActivationType::kF32, threads_, options, kPoolBlocks};
  }
  std::span<const TokenId> tokens(size_t first, size_t end) const {
    return std::span(tokens_).subspan(first, end - first);
  }

  void expect_row(const nlohmann::json& row, std::span<const float> logits) {
    for (size_t i = 0; i < row["ids"].size(); ++i) {
      compare(row["logits"][i], logits[row["ids"][i].get<size_t>()]);
    }
    // The best token is the best of all, not only of those listed.
    const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
    EXPECT_EQ(best, row["ids"][0].get<int64_t>());
    EXPECT_LE(worst_, kTolerance) << "at position " << row["position"];
  }
  void expect_last(std::span<const float> logits) {
    ASSERT_EQ(expected_["last"].size(), logits.size());
    for (size_t i = 0; i < logits.size(); ++i) {
      compare(expected_["last"][i], logits[i]);
    }
    EXPECT_LE(worst_, kTolerance);
  }
  void compare(double expected, double logit) {
    // A NaN must not get lost in a maximum.
    const double difference = std::abs(expected - logit);
    worst_ = difference <= worst_ ? worst_ : difference;
  }

  const Kernels& kernels_ = GetParam().backend.kernels();
  mutable ThreadPool threads_{2};
  Model model_{GgufFile::open(kFolder + GetParam().model + ".gguf"), kernels_, ActivationType::kF32,
               threads_, [](int64_t, int64_t) {}};
  nlohmann::json expected_;
  std::vector<TokenId> tokens_;
  double worst_ = 0;
};

bool go_on(Stage, int64_t, int64_t) { return true; }

TEST_P(TinyModelTest, PrefillInOneStep) {
  Pipeline run = pipeline(512);
  for (const nlohmann::json& row : expected_["rows"]) {
    const size_t end = row["position"].get<size_t>() + 1;
    run.prefill({}, tokens(0, end), go_on);
    expect_row(row, run.prefill_logits());
  }
  expect_last(run.prefill_logits());
}

TEST_P(TinyModelTest, PrefillInChunksOfSeven) {
  Pipeline run = pipeline(7);
  for (const nlohmann::json& row : expected_["rows"]) {
    const size_t end = row["position"].get<size_t>() + 1;
    run.prefill({}, tokens(0, end), go_on);
    expect_row(row, run.prefill_logits());
  }
  expect_last(run.prefill_logits());
}

TEST_P(TinyModelTest, QuestionsTokenByToken) {
  Pipeline run = pipeline(7);
  constexpr size_t kDocument = 45;  // neither a page nor a window
  Question question(run, run.prefill(tokens(0, 5), tokens(5, kDocument), go_on),
                    static_cast<int64_t>(tokens_.size() - kDocument));
  std::span<const float> logits;
  for (size_t i = kDocument; i < tokens_.size(); ++i) {
    logits = question.append(tokens(i, i + 1));
    for (const nlohmann::json& row : expected_["rows"]) {
      if (row["position"] == i) expect_row(row, logits);
    }
  }
  expect_last(logits);
}

// All pairs kept: compression alone must not change an answer.
TEST_P(TinyModelTest, QuestionOnACompressedDocumentThatKeepsAll) {
  Pipeline run = pipeline(7);
  constexpr size_t kDocument = 45;
  const auto full = run.prefill(tokens(0, 5), tokens(5, kDocument), go_on);
  ScoreSet scores{full->global_layers(), model_.config().kv_heads, kDocument - 5, {}};
  scores.scores.resize(static_cast<size_t>(scores.pairs()));
  const auto document = run.compact(full, Pipeline::select(scores, {1.0}), go_on);
  Question question(run, document, static_cast<int64_t>(tokens_.size() - kDocument));
  expect_last(question.append(tokens(kDocument, tokens_.size())));
}

// A document that another pipeline made and saved answers with the same bits.
TEST_P(TinyModelTest, QuestionOnADocumentFromAFile) {
  constexpr size_t kDocument = 85;
  const TempFolder folder;
  const std::string path = folder.path("a.document");
  const KvShape shape = make_kv_shape(make_model_identity(model_.file(), ""), model_.kv_groups(),
                                      model_.kv_geometry(KvType::kF32, 16));
  std::vector<float> expected;
  {
    Pipeline run = pipeline(7);
    const auto full = run.prefill(tokens(0, 20), tokens(20, kDocument), go_on);
    ScoreSet scores{full->global_layers(), model_.config().kv_heads, kDocument - 20, {}};
    Prng prng(3);
    for (int64_t i = 0; i < scores.pairs(); ++i) {
      scores.scores.push_back(static_cast<float>(prng.uniform()));
    }
    const auto document = run.compact(full, Pipeline::select(scores, {0.4}), go_on);
    DocumentIdentity identity;
    identity.shape = shape;
    identity.prefix_ids.assign(tokens_.begin(), tokens_.begin() + 20);
    identity.context_ids.assign(tokens_.begin() + 20, tokens_.begin() + kDocument);
    save_document(path, *document, identity);
    Question question(run, document, 20);
    const auto logits = question.append(tokens(kDocument, tokens_.size()));
    expected.assign(logits.begin(), logits.end());
  }
  Pipeline run = pipeline(512);
  const LoadedDocument loaded = load_document(path, run.pool(), shape);
  Question question(run, loaded.document, 20);
  const auto logits = question.append(tokens(kDocument, tokens_.size()));
  EXPECT_EQ(std::vector<float>(logits.begin(), logits.end()), expected);
}

INSTANTIATE_TEST_SUITE_P(All, TinyModelTest, ::testing::ValuesIn(all_cases()), case_name);

// ---- What is not supported says so

GgufWriter llama_file() {
  GgufWriter writer;
  writer.add("general.architecture", "llama")
      .add("llama.block_count", uint32_t{1})
      .add("llama.embedding_length", uint32_t{32})
      .add("llama.feed_forward_length", uint32_t{32})
      .add("llama.context_length", uint32_t{64})
      .add("llama.attention.head_count", uint32_t{2})
      .add("llama.rope.dimension_count", uint32_t{16});
  const std::vector<std::byte> embedding(4 * 32 * 8);
  writer.add_tensor("token_embd.weight", WeightType::kF32, {32, 8}, embedding);
  return writer;
}

/// A whole model of zeros.
GgufWriter llama_file_with_weights() {
  const std::vector<std::byte> zeros(4 * 32 * 32);
  GgufWriter writer = llama_file();
  for (const char* name : {"attn_norm", "ffn_norm"}) {
    writer.add_tensor(std::string("blk.0.") + name + ".weight", WeightType::kF32, {32},
                      std::span(zeros).first(128));
  }
  for (const char* name :
       {"attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"}) {
    writer.add_tensor(std::string("blk.0.") + name + ".weight", WeightType::kF32, {32, 32}, zeros);
  }
  writer.add_tensor("output_norm.weight", WeightType::kF32, {32}, std::span(zeros).first(128));
  return writer;
}

std::string load_error(const GgufWriter& writer) {
  ThreadPool threads(1);
  try {
    Model(GgufFile::from_bytes(writer.bytes(), "tiny.gguf"), reference_kernels(),
          ActivationType::kF32, threads, [](int64_t, int64_t) {});
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kModelFile);
    return error.what();
  }
  return "no error";
}

std::string config_error(const GgufWriter& writer) {
  try {
    read_model_config(GgufFile::from_bytes(writer.bytes(), "tiny.gguf"));
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kModelFile);
    return error.what();
  }
  return "no error";
}

TEST(ModelConfigTest, RefusesWhatItCannotCompute) {
  EXPECT_EQ(config_error(llama_file()), "no error");
  EXPECT_EQ(config_error(llama_file().add("llama.rope.scaling.type", "yarn")),
            "tiny.gguf: RoPE scaling of type \"yarn\" is not supported");
  EXPECT_EQ(config_error(llama_file().add("llama.expert_count", uint32_t{8})),
            "tiny.gguf: mixture-of-experts models are not supported");
  GgufWriter partial;
  partial.add("general.architecture", "qwen2")
      .add("qwen2.block_count", uint32_t{1})
      .add("qwen2.embedding_length", uint32_t{64})
      .add("qwen2.feed_forward_length", uint32_t{32})
      .add("qwen2.context_length", uint32_t{64})
      .add("qwen2.attention.head_count", uint32_t{2})
      .add("qwen2.rope.dimension_count", uint32_t{16});
  EXPECT_EQ(config_error(partial), "tiny.gguf: RoPE on a part of the head is not supported");
  EXPECT_THAT(config_error(GgufWriter().add("general.architecture", "qwen3moe")),
              HasSubstr("architecture \"qwen3moe\" is not supported"));
}

TEST(ModelConfigTest, RefusesWeightsThatNobodyReads) {
  EXPECT_EQ(load_error(llama_file_with_weights()), "no error");
  const std::vector<std::byte> zeros(128);
  for (const char* name : {"blk.0.attn_output.bias", "blk.1.attn_norm.weight", "output.bias"}) {
    GgufWriter writer = llama_file_with_weights();
    writer.add_tensor(name, WeightType::kF32, {32}, zeros);
    EXPECT_EQ(load_error(writer), std::string("tiny.gguf: tensor ") + name + " is not supported");
  }
}

TEST(ModelConfigTest, ScalesRopeLinearlyUnderEveryName) {
  const auto last_frequency = [](const GgufWriter& writer) {
    return read_model_config(GgufFile::from_bytes(writer.bytes(), "tiny.gguf"))
        .rope_global.inverse_frequency.back();
  };
  const double plain = last_frequency(llama_file());
  const double scaled = plain / 4;
  EXPECT_EQ(last_frequency(llama_file()
                               .add("llama.rope.scaling.type", "linear")
                               .add("llama.rope.scaling.factor", 4.0f)),
            scaled);
  EXPECT_EQ(last_frequency(llama_file().add("llama.rope.scaling.factor", 4.0f)), scaled);
  EXPECT_EQ(last_frequency(llama_file().add("llama.rope.scale_linear", 4.0f)), scaled);
  EXPECT_EQ(last_frequency(llama_file()
                               .add("llama.rope.scaling.type", "none")
                               .add("llama.rope.scaling.factor", 4.0f)),
            plain);
}

GgufWriter gemma3_file() {
  GgufWriter writer;
  writer.add("general.architecture", "gemma3")
      .add("gemma3.block_count", uint32_t{7})
      .add("gemma3.embedding_length", uint32_t{32})
      .add("gemma3.feed_forward_length", uint32_t{32})
      .add("gemma3.context_length", uint32_t{64})
      .add("gemma3.attention.head_count", uint32_t{2})
      .add("gemma3.attention.sliding_window", uint32_t{8});
  const std::vector<std::byte> embedding(4 * 32 * 8);
  writer.add_tensor("token_embd.weight", WeightType::kF32, {32, 8}, embedding);
  return writer;
}

TEST(ModelConfigTest, ReadsGemma3Layers) {
  const auto globals = [](const GgufWriter& writer) {
    return read_model_config(GgufFile::from_bytes(writer.bytes(), "tiny.gguf")).is_global;
  };
  EXPECT_EQ(globals(gemma3_file()),
            (std::vector<bool>{false, false, false, false, false, true, false}));
  EXPECT_EQ(globals(gemma3_file().add("gemma3.attention.sliding_window_pattern", uint32_t{3})),
            (std::vector<bool>{false, false, true, false, false, true, false}));
  EXPECT_EQ(config_error(gemma3_file().add("gemma3.final_logit_softcapping", 30.0f)),
            "tiny.gguf: soft-capped logits are not supported");
}

}  // namespace
}  // namespace pagezip
