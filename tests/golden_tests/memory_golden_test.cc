// What a compressed document costs, read from the pool: whole blocks in use, page waste, prefix and
// windows included.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "tests/golden_tests/pipeline_fixture.h"

namespace pagezip {
namespace {

class Memory : public testing::TestWithParam<GoldenModel> {};

TEST_P(Memory, ThreeTenthsOfThePairsTakeAThirdOfTheBytes) {
  const Model& model = load_model(GetParam(), ActivationType::kQ8);
  const GoldenText text(golden_json(GetParam(), "json"));
  std::vector<TokenId> context;
  while (context.size() < 1500) {
    context.insert(context.end(), text.context.begin(), text.context.end());
  }
  ThreadPool threads(2);
  Pipeline pipeline(model, cpu_kernels(), ActivationType::kQ8, threads, {}, 1024);
  const auto bytes_in_use = [&] {
    return pipeline.pool().blocks_in_use() * pipeline.pool().geometry().block_bytes();
  };
  auto full = pipeline.prefill(text.prefix, context, go_on);
  const int64_t full_bytes = bytes_in_use();
  EXPECT_EQ(full_bytes, full->kv_bytes());
  const ScoreSet scores = pipeline.score(full, context, text.prompts, go_on);
  EXPECT_EQ(bytes_in_use(), full_bytes) << "scoring takes no pool blocks";

  // Beside the full cache: the residual stream, and of a chunk one layer's K/V in whole pages and
  // one layer's scores.
  const ModelConfig& c = model.config();
  const int64_t rows = text.prompts.rows_max(static_cast<int64_t>(context.size()), 2048);
  const int64_t layer_row = int64_t{2} * c.kv_heads * c.head_dim * 2;
  EXPECT_LE(pipeline.score_bytes(),
            rows * (c.hidden + c.kv_heads) * 4 + (rows + 16) * (layer_row + 4));

  auto compacted =
      pipeline.compact(full, Pipeline::select(scores, {0.3, Selector::kGlobal, 0}), go_on);
  full.reset();
  EXPECT_EQ(bytes_in_use(), compacted->kv_bytes());
  const double ratio = static_cast<double>(bytes_in_use()) / static_cast<double>(full_bytes);
  std::printf("  %s, %zu tokens: %lld -> %lld bytes, %.3f; scoring took %lld bytes beside\n",
              GetParam().name, context.size(), static_cast<long long>(full_bytes),
              static_cast<long long>(bytes_in_use()), ratio,
              static_cast<long long>(pipeline.score_bytes()));
  if (model.config().window == 0) {
    EXPECT_LE(ratio, 0.33);
  }
  compacted.reset();
  EXPECT_EQ(pipeline.pool().blocks_in_use(), 0);
  EXPECT_EQ(pipeline.pool().audit(), "");
}

INSTANTIATE_TEST_SUITE_P(Models, Memory, testing::Values(kSmolLm2, kQwen25, kGemma3),
                         [](const auto& test) { return test_name(test.param); });

}  // namespace
}  // namespace pagezip
