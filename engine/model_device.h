// Runs the scheduler's steps on a model: the device of the real engine.
//
// One batch for all rows, one sampler for each choice, one score slot. Engine thread only.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "engine/sampler.h"
#include "engine/scorer.h"
#include "engine/transformer.h"
#include "scheduler/step_plan.h"

namespace pagezip {

/// How the tokens of a choice are picked, and what is told about them.
struct ChoiceSampling {
  SamplingParams params;
  /// Log-probabilities of the sampled token and of so many best ones; negative: none.
  int top_logprobs = -1;
  int prompt_logprobs = -1;  // likewise, of the tokens of its prompt
};

class ModelDevice : public Device {
 public:
  /// `score_rows_max`: rows of the longest repeat prompt. Borrows transformer and clock.
  ModelDevice(Transformer& transformer, int64_t score_rows_max, const Clock& clock);

  /// Before the first plan that samples for the choice. `history`: tokens that its repetition
  /// penalty counts.
  void begin(ChoiceKey key, const ChoiceSampling& sampling, std::span<const TokenId> history);
  void end(ChoiceKey key) { samplers_.erase(key); }

  void run(const StepPlan& plan, StepResult& result) override;

 private:
  struct Entry {
    Sampler sampler;
    int top_logprobs;
    int prompt_logprobs;
  };
  void run_copies(const StepPlan& plan);
  void run_rows(const StepPlan& plan, StepResult& result);
  void run_targets(const StepPlan& plan, StepResult& result);
  void sample(const RowsWork& work, std::span<const float> logits, StepResult& result);
  TokenId sampled(SlotRef slot) const;

  Transformer& transformer_;
  const Clock& clock_;
  ScoreSlot slot_;
  std::map<ChoiceKey, Entry> samplers_;
  MirroredArray<float> logits_;  // [rows that are sampled, vocab]
  MirroredArray<float> slice_;   // [rows of a slice of targets, vocab]
  std::vector<TokenId> tokens_;  // sampled by earlier steps, read by the one in hand
  std::vector<RowSpan> spans_;
  std::vector<uint32_t> pairs_;
  // Sampled tokens of the last steps, for plans made before they were known.
  std::vector<std::pair<uint64_t, std::vector<TokenId>>> recent_;
};

}  // namespace pagezip
