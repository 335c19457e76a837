// Real compaction against a masked full cache: the evicted pairs are either gone, or ignored by a
// plain attention that reads the full document. Both must give the same logits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>

#include "kernels/math.h"
#include "tests/golden_tests/pipeline_fixture.h"

namespace pagezip {
namespace {

// What masked_attend() ignores of segment 0 of global layers: [layer * heads + head][pair].
std::vector<std::vector<bool>> masked_pairs;

float load_f32(const std::byte* p, int64_t index) {
  float value = 0;
  std::memcpy(&value, p + index * 4, 4);
  return value;
}

// One query head of one row, in double, over float32 pages.
void masked_row(const AttendArgs& args, const AttentionSpan& span, int64_t row, int head,
                bool masked) {
  const int64_t d = args.page.head_dim;
  const int kv_head = head / (args.heads / args.kv_heads);
  const float* q = args.q.row(span.first_row + row) + head * d;
  std::vector<double> out(static_cast<size_t>(d));
  double sum = 0;
  double max = -std::numeric_limits<double>::infinity();
  for (int s = 0; s < span.view->count; ++s) {
    const Segment& segment = span.view->segments[s];
    const int64_t position = span.first_position + row - segment.first_position;
    const int64_t end = std::min(segment.length(span.layer, kv_head), position + 1);
    int64_t pair = segment.first_page * args.page.page_tokens;
    if (span.window > 0) {
      pair = std::max(pair, position - span.window + 1);
    }
    for (; pair < end; ++pair) {
      const auto list = static_cast<size_t>(span.layer * args.kv_heads + kv_head);
      if (masked && s == 0 && masked_pairs[list][static_cast<size_t>(pair)]) {
        continue;
      }
      const int64_t tokens = args.page.page_tokens;
      const std::byte* page = segment.page(span.layer, kv_head, pair / tokens);
      double logit = 0;
      for (int64_t i = 0; i < d; ++i) {
        logit += static_cast<double>(q[i]) * load_f32(page, i * tokens + pair % tokens);
      }
      logit *= args.scale;
      const double new_max = std::max(max, logit);
      const double keep = std::exp(max - new_max);
      const double weight = std::exp(logit - new_max);
      for (int64_t i = 0; i < d; ++i) {
        const double v = load_f32(page + args.page.k_bytes(), pair % tokens * d + i);
        out[static_cast<size_t>(i)] = out[static_cast<size_t>(i)] * keep + weight * v;
      }
      sum = sum * keep + weight;
      max = new_max;
    }
  }
  for (int64_t i = 0; i < d; ++i) {
    args.out.row(span.first_row + row)[head * d + i] =
        static_cast<float>(out[static_cast<size_t>(i)] / sum);
  }
}

void masked_attend(const AttendArgs& args, ThreadPool& pool) {
  for (const AttentionSpan& span : args.spans) {
    pool.parallel_for(span.rows * args.heads, [&](int64_t item, int) {
      masked_row(args, span, item / args.heads, static_cast<int>(item % args.heads),
                 span.window == 0);
    });
  }
}

void mask_all_but(const KeptSets& kept, int64_t prefix, int64_t length) {
  masked_pairs.assign(static_cast<size_t>(kept.layers * kept.heads),
                      std::vector<bool>(static_cast<size_t>(length), false));
  for (int l = 0; l < kept.layers; ++l) {
    for (int h = 0; h < kept.heads; ++h) {
      auto& mask = masked_pairs[static_cast<size_t>(l * kept.heads + h)];
      std::fill(mask.begin() + prefix, mask.end(), true);
      for (const uint32_t token : kept.head(l, h)) {
        mask[static_cast<size_t>(prefix + token)] = false;
      }
    }
  }
}

class Compaction : public testing::TestWithParam<GoldenModel> {};

TEST_P(Compaction, EqualsAMaskedFullCache) {
  const Model& model = load_model(GetParam(), ActivationType::kF32);
  const nlohmann::json json = golden_json(GetParam(), "json");
  const GoldenText text(json);
  ThreadPool threads(2);
  PipelineOptions options;
  options.kv_type = KvType::kF32;
  Pipeline pipeline(model, cpu_kernels(), ActivationType::kF32, threads, options, 4096);
  const auto full = pipeline.prefill(text.prefix, text.context, go_on);
  const ScoreSet scores = pipeline.score(full, text.context, text.prompts, go_on);
  Kernels masked_kernels = cpu_kernels();
  masked_kernels.attend = masked_attend;
  const auto question_ids = ids(json["ratios"]["1.0"]["answers"][0]["ids"]);
  const auto tokens = static_cast<int64_t>(question_ids.size()) + 1;
  for (const double ratio : {0.7, 0.5, 0.3, 0.1}) {
    SCOPED_TRACE(ratio);
    const KeptSets kept = Pipeline::select(scores, {ratio, Selector::kGlobal, 0});
    mask_all_but(kept, full->prefix_length(), full->logical_length());
    const auto compacted = pipeline.compact(full, kept, go_on);
    Question question(pipeline, compacted, tokens);

    // The masked side drives its own transformer on the same full document.
    Transformer masked(model, masked_kernels, ActivationType::kF32, pipeline.pool().geometry().page,
                       64, threads);
    Sequence sequence(pipeline.pool(), model.kv_groups(), full->logical_length());
    auto blocks = pipeline.pool().reserve(sequence.blocks_needed(tokens));
    ASSERT_TRUE(blocks.has_value());
    std::vector<float> expected(static_cast<size_t>(model.config().vocab));
    std::vector<TokenId> next = question_ids;  // many rows, then one
    for (int call = 0; call < 2; ++call) {
      const auto logits = question.append(next);
      const int64_t row = sequence.length();
      sequence.grow(row + static_cast<int64_t>(next.size()), *blocks);
      std::vector<KvView> views;
      for (int g = 0; g < sequence.groups(); ++g) {
        views.push_back(full->view(g));
        views.back().push(sequence.segment(g));
      }
      const RowSpan span{next, full->logical_length() + row, views};
      masked.forward({&span, 1}, {expected.data(), 1, static_cast<int64_t>(expected.size())});
      float worst = 0;
      for (size_t i = 0; i < expected.size(); ++i) {
        worst = std::max(worst, std::abs(logits[i] - expected[i]));
      }
      std::printf("  %s at %.1f, %zu rows: logits differ by %.2g\n", GetParam().name, ratio,
                  next.size(), worst);
      EXPECT_LE(worst, 1e-4);
      next = {best_token(logits)};
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Compaction, testing::Values(kSmolLm2, kGemma3Long),
                         [](const auto& test) { return test_name(test.param); });

}  // namespace
}  // namespace pagezip
