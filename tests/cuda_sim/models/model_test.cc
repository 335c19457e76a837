// Whole tiny models on the CUDA backend in the simulator, from prefill over scores, selection and
// compaction to decode, beside the CPU backend.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/prng.h"
#include "engine/pipeline.h"
#include "kernels/cuda/cuda_kernels.h"
#include "tests/gguf_writer.h"
#include "tests/tiny_tokenizer.h"

namespace pagezip::test {
namespace {

struct Results {
  std::vector<float> scores;
  KeptSets kept;
  std::vector<float> logits;  // of the question's tokens, one row after the other
};

std::vector<TokenId> random_tokens(const Model& model, int64_t count, uint64_t seed) {
  Prng prng(seed);
  std::vector<TokenId> ids(static_cast<size_t>(count));
  for (TokenId& id : ids) {
    id = static_cast<TokenId>(prng.below(static_cast<uint64_t>(model.config().vocab)));
  }
  return ids;
}

GgufFile tiny_file(const std::string& name) {
  return GgufFile::open(std::string(PAGEZIP_SOURCE_DIR) + "/tests/data/tiny/" + name + ".gguf");
}

/// Two layers, two query heads on one KV head of 64 channels, which tensor cores read.
GgufFile wide_head_file() {
  constexpr int64_t kHidden = 64, kHeadDim = 64, kFfn = 48;
  const TinyVocabulary vocabulary = tiny_bpe();
  const auto tokens = static_cast<int64_t>(vocabulary.tokens.size());
  GgufWriter writer = bpe_file(vocabulary);
  writer.add("general.architecture", "llama")
      .add("llama.block_count", 2u)
      .add("llama.embedding_length", uint32_t{kHidden})
      .add("llama.attention.head_count", 2u)
      .add("llama.attention.head_count_kv", 1u)
      .add("llama.attention.key_length", uint32_t{kHeadDim})
      .add("llama.attention.value_length", uint32_t{kHeadDim})
      .add("llama.feed_forward_length", uint32_t{kFfn})
      .add("llama.context_length", 4096u);
  Prng prng(1);
  const auto add = [&](const std::string& name, const std::vector<int64_t>& shape) {
    std::vector<float> values(static_cast<size_t>(shape[0] * (shape.size() == 1 ? 1 : shape[1])));
    for (float& value : values) {
      value = shape.size() == 1 ? 1.0f : static_cast<float>(prng.uniform() - 0.5) * 0.5f;
    }
    writer.add_raw_tensor(name, 0, shape, std::as_bytes(std::span(values)));
  };
  add("token_embd.weight", {kHidden, tokens});
  add("output_norm.weight", {kHidden});
  for (const std::string block : {"blk.0.", "blk.1."}) {
    add(block + "attn_norm.weight", {kHidden});
    add(block + "attn_q.weight", {kHidden, 2 * kHeadDim});
    add(block + "attn_k.weight", {kHidden, kHeadDim});
    add(block + "attn_v.weight", {kHidden, kHeadDim});
    add(block + "attn_output.weight", {2 * kHeadDim, kHidden});
    add(block + "ffn_norm.weight", {kHidden});
    add(block + "ffn_gate.weight", {kHidden, kFfn});
    add(block + "ffn_up.weight", {kHidden, kFfn});
    add(block + "ffn_down.weight", {kFfn, kHidden});
  }
  return GgufFile::from_bytes(writer.bytes(), "wide.gguf");
}

GgufFile model_file(const std::string& name) {
  return name == "wide-head" ? wide_head_file() : tiny_file(name);
}

/// Compresses a document and asks a question of four tokens, the last two one by one. With `kept`,
/// that is what is compacted: close scores may be chosen differently.
Results run_job(const Kernels& kernels, const std::string& name, const PipelineOptions& options,
                const KeptSets* kept, ActivationType activations = ActivationType::kF32) {
  ThreadPool threads(1);
  const Model model(model_file(name), kernels, activations, threads, [](int64_t, int64_t) {});
  Pipeline pipeline(model, kernels, activations, threads, options, 128);
  const auto go_on = [](Stage, int64_t, int64_t) { return true; };
  const auto context = random_tokens(model, 30, 2);
  const auto full = pipeline.prefill(random_tokens(model, 5, 1), context, go_on);
  const RepeatPrompts prompts{random_tokens(model, 5, 101), random_tokens(model, 7, 102),
                              random_tokens(model, 3, 103)};
  const ScoreSet scores = pipeline.score(full, context, prompts, go_on);
  Results results{scores.scores, Pipeline::select(scores, {0.4, Selector::kGlobal, 0}), {}};
  const auto compacted = pipeline.compact(full, kept != nullptr ? *kept : results.kept, go_on);
  Question question(pipeline, compacted, 4);
  const auto tokens = random_tokens(model, 4, 3);
  for (const auto& [begin, count] : {std::pair<size_t, size_t>{0, 2}, {2, 1}, {3, 1}}) {
    const auto logits = question.append(std::span(tokens).subspan(begin, count));
    results.logits.insert(results.logits.end(), logits.begin(), logits.end());
  }
  return results;
}

/// `share`: of the range of the values, that two may differ by.
void expect_close(const std::vector<float>& a, const std::vector<float>& b, double share) {
  ASSERT_EQ(a.size(), b.size());
  const auto [low, high] = std::minmax_element(b.begin(), b.end());
  const double range = static_cast<double>(*high) - *low;
  ASSERT_GT(range, 0.1);
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_NEAR(a[i], b[i], share * range) << "value " << i;
  }
}

class CudaModelTest : public testing::TestWithParam<const char*> {
 protected:
  ~CudaModelTest() override { cuda_sim::options() = {}; }
};
INSTANTIATE_TEST_SUITE_P(TinyModels, CudaModelTest,
                         testing::Values("llama-gqa3", "gemma3-plain", "wide-head"),
                         [](const auto& model) {
                           std::string name = model.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(CudaModelTest, EqualsTheCpuBackend) {
  cuda_sim::options() = {1, true};
  PipelineOptions options;
  options.chunk_tokens = 16;
  options.prefill_rows = 20;
  const bool tensor_cores = GetParam() == std::string("wide-head");
  options.kv_type = tensor_cores ? KvType::kF16 : KvType::kF32;
  const Results cpu = run_job(cpu_kernels(), GetParam(), options, nullptr);
  const Results cuda = run_job(cuda_kernels(), GetParam(), options, &cpu.kept);
  const double share = tensor_cores ? 5e-3 : 1e-5;
  expect_close(cuda.scores, cpu.scores, share);
  expect_close(cuda.logits, cpu.logits, share);
}

// Weights and activations rounded to 8 bits of mantissa, in some layers.
TEST_P(CudaModelTest, Bfloat16IsNear) {
  cuda_sim::options() = {1, true};
  PipelineOptions options;
  options.chunk_tokens = 16;
  const Results cpu = run_job(cpu_kernels(), GetParam(), options, nullptr);
  const Results cuda = run_job(cuda_kernels(), GetParam(), options, &cpu.kept, ActivationType::kQ8);
  expect_close(cuda.scores, cpu.scores, 0.05);
  expect_close(cuda.logits, cpu.logits, 0.05);
}

TEST(CudaModel, GivesItsMemoryBack) {
  const auto allocations = [] {
    run_job(cuda_kernels(), "wide-head", {}, nullptr);
    return cuda_sim::device_allocations();
  };
  const size_t once = allocations();  // the backend keeps some
  EXPECT_EQ(allocations(), once);
}

// How a prompt is cut into steps, and the threads' order, change nothing.
TEST_P(CudaModelTest, StepsChangeNoBit) {
  PipelineOptions options;
  options.chunk_tokens = 16;
  options.kv_type = KvType::kF16;
  options.prefill_rows = 512;
  cuda_sim::options() = {2, false};
  const Results once = run_job(cuda_kernels(), GetParam(), options, nullptr);
  options.prefill_rows = 7;
  cuda_sim::options() = {3, true};
  const Results steps = run_job(cuda_kernels(), GetParam(), options, nullptr);
  EXPECT_EQ(once.scores, steps.scores);
  EXPECT_EQ(once.kept.pairs, steps.kept.pairs);
  EXPECT_EQ(once.logits, steps.logits);
}

}  // namespace
}  // namespace pagezip::test
