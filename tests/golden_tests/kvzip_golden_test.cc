// The whole pipeline on real models against the float32 oracle (tests/golden/README.md).
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "tests/golden_tests/pipeline_fixture.h"

namespace pagezip {
namespace {

struct Tolerance {
  float score_p99;       // 99th percentile of |log score - log golden score|
  float score_max;       // largest of them
  double overlap;        // of kept sets at ratios .5 and .3
  double overlap_tenth;  // at .1
  float log_prob;        // of the golden top tokens
  float margin;          // answers are equal up to the first golden margin below this
  bool answers_at_every_ratio;
};

constexpr Tolerance kFloat = {1e-3f, 1e-3f, 0.999, 0.999, 1e-3f, 0.01f, true};
constexpr Tolerance kEightBit = {0.25f, 10.0f, 0.965, 0.95, 0.5f, 0.3f, false};

struct Case {
  GoldenModel model;
  ActivationType activations;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.model.name << (c.activations == ActivationType::kF32 ? " float32" : " 8-bit");
}

class KvzipGolden : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    golden_ = golden_json(GetParam().model, "json");
    tolerance_ = GetParam().activations == ActivationType::kF32 ? kFloat : kEightBit;
    model_ = &load_model(GetParam().model, GetParam().activations);
    options_.kv_type = GetParam().activations == ActivationType::kF32 ? KvType::kF32 : KvType::kF16;
    options_.chunk_tokens = golden_["chunk"];
    pipeline_ = std::make_unique<Pipeline>(*model_, golden_kernels(), GetParam().activations,
                                           threads_, options_, 4096);
    text_ = std::make_unique<GoldenText>(golden_);
    full_ = pipeline_->prefill(text_->prefix, text_->context, go_on);
  }

  static double log_sum_exp(std::span<const float> logits) {
    const double max = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const float logit : logits) {
      sum += std::exp(logit - max);
    }
    return max + std::log(sum);
  }

  // Largest difference to the golden log-probabilities [[id, log p], ...].
  static float log_prob_error(std::span<const float> logits, const nlohmann::json& top) {
    const double total = log_sum_exp(logits);
    double worst = 0;
    for (const auto& entry : top) {
      const double log_prob = logits[entry[0].get<size_t>()] - total;
      worst = std::max(worst, std::abs(log_prob - entry[1].get<double>()));
    }
    return static_cast<float>(worst);
  }

  KeptSets kept_by(const std::vector<float>& scores, double ratio) const {
    ScoreSet set{full_->global_layers(), model_->config().kv_heads,
                 static_cast<int64_t>(text_->context.size()), scores};
    return Pipeline::select(set, {ratio, Selector::kGlobal, 0});
  }

  static double overlap(const KeptSets& a, const KeptSets& b) {
    int64_t common = 0;
    for (int l = 0; l < a.layers; ++l) {
      for (int h = 0; h < a.heads; ++h) {
        std::vector<uint32_t> both;
        std::ranges::set_intersection(a.head(l, h), b.head(l, h), std::back_inserter(both));
        common += static_cast<int64_t>(both.size());
      }
    }
    return static_cast<double>(common) / static_cast<double>(std::max(a.count(), b.count()));
  }

  void check_answers(const std::shared_ptr<const Document>& document, const std::string& ratio,
                     bool answers, bool log_probs);
  void check_logit_scores();
  void check_scores(const std::vector<float>& log_scores, const std::string& file,
                    bool logit) const;

  ThreadPool threads_{2};
  nlohmann::json golden_;
  Tolerance tolerance_{};
  PipelineOptions options_;
  const Model* model_ = nullptr;
  std::unique_ptr<Pipeline> pipeline_;
  std::unique_ptr<GoldenText> text_;
  std::shared_ptr<const Document> full_;
};

void KvzipGolden::check_answers(const std::shared_ptr<const Document>& document,
                                const std::string& ratio, bool answers, bool log_probs) {
  const auto ends = ids(golden_["end_ids"]);
  for (const auto& row : golden_["ratios"][ratio]["answers"]) {
    SCOPED_TRACE("ratio " + ratio + ": " + row["question"].get<std::string>());
    Question question(*pipeline_, document, static_cast<int64_t>(row["ids"].size()) + 12);
    std::span<const float> logits = question.append(ids(row["ids"]));
    if (log_probs) {
      EXPECT_LE(log_prob_error(logits, row["top10"]), tolerance_.log_prob);
    }
    const auto expected = ids(row["answer"]);
    for (size_t i = 0; answers && i < expected.size(); ++i) {
      if (row["margins"][i].get<float>() < tolerance_.margin) {
        break;
      }
      const TokenId token = best_token(logits);
      ASSERT_EQ(token, expected[i]) << "token " << i;
      if (i + 1 < expected.size()) {
        logits = question.append({&token, 1});
      }
    }
  }
}

// The softmax-free variant.
void KvzipGolden::check_logit_scores() {
  const auto tokens = static_cast<int64_t>(text_->context.size());
  ScoreSlot slot(pipeline_->transformer(), ScoreFunction::kLogit,
                 text_->prompts.rows_max(tokens, options_.chunk_tokens));
  ScoreJob job(pipeline_->transformer(), slot, full_, text_->context, text_->prompts,
               options_.chunk_tokens);
  while (job.step()) {
  }
  check_scores(job.take().scores, "kvzip_logit.npy", true);
}

void KvzipGolden::check_scores(const std::vector<float>& log_scores, const std::string& file,
                               bool logit) const {
  const std::vector<float> expected = golden_npy(GetParam().model, file);
  ASSERT_EQ(log_scores.size(), expected.size());
  std::vector<float> errors;
  for (size_t i = 0; i < expected.size(); ++i) {
    // Probabilities below 1e-30 have too few digits left in the golden float32 file.
    if (logit) {
      errors.push_back(std::abs(log_scores[i] - expected[i]) /
                       std::max(1.0f, std::abs(expected[i])));
    } else if (expected[i] > 1e-30f) {
      errors.push_back(std::abs(log_scores[i] - std::log(expected[i])));
    }
  }
  std::sort(errors.begin(), errors.end());
  const float p99 = errors[errors.size() * 99 / 100];
  RecordProperty("score_error_p99" + file, std::to_string(p99));
  EXPECT_LE(p99, tolerance_.score_p99);
  EXPECT_LE(errors.back(), tolerance_.score_max);
  std::printf("  %s.%s: p99 %.2g, max %.2g\n", GetParam().model.name, file.c_str(), p99,
              errors.back());
}

// One test a model: loading it is a large part of the time.
TEST_P(KvzipGolden, LogProbsScoresKeptSetsAndAnswers) {
  const char* name = GetParam().model.name;
  const float error = log_prob_error(pipeline_->prefill_logits(), golden_["prefill_top20"]);
  std::printf("  %s: prefill log-probs off by %.2g\n", name, error);
  EXPECT_LE(error, tolerance_.log_prob);

  const ScoreSet scores = pipeline_->score(full_, text_->context, text_->prompts, go_on);
  check_scores(scores.scores, "kvzip.npy", false);
  const std::vector<float> expected = golden_npy(GetParam().model, "kvzip.npy");
  check_answers(full_, "1.0", true, true);
  for (const auto& [ratio, row] : golden_["ratios"].items()) {
    const double value = std::stod(ratio);
    const KeptSets kept = Pipeline::select(scores, {value, Selector::kGlobal, 0});
    const double common = overlap(kept, kept_by(expected, value));
    std::printf("  %s at %s: overlap %.4f\n", name, ratio.c_str(), common);
    EXPECT_GE(common, value < 0.2 ? tolerance_.overlap_tenth : tolerance_.overlap) << ratio;
    const auto compressed = pipeline_->compact(full_, kept, go_on);
    if (value == 1.0 || tolerance_.answers_at_every_ratio) {
      check_answers(compressed, ratio, true, true);
    }
  }
  if (GetParam().activations == ActivationType::kF32) {
    check_logit_scores();
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, KvzipGolden,
    testing::Values(Case{kSmolLm2, ActivationType::kF32}, Case{kQwen25, ActivationType::kF32},
                    Case{kGemma3, ActivationType::kF32}, Case{kGemma3Long, ActivationType::kF32},
                    Case{kSmolLm2, ActivationType::kQ8}, Case{kQwen25, ActivationType::kQ8},
                    Case{kGemma3, ActivationType::kQ8}, Case{kGemma3Long, ActivationType::kQ8}),
    [](const auto& test) {
      return test_name(test.param.model) +
             (test.param.activations == ActivationType::kF32 ? "_f32" : "_q8");
    });

}  // namespace
}  // namespace pagezip
