// Picks the next token from logits: greedy by default, else the usual filters and a seeded draw.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/prng.h"

namespace pagezip {

/// Filters apply in this order: repetition penalty, then (temperature > 0) top-k, top-p and min-p
/// on the untempered distribution's order, then temperature. Off by default.
struct SamplingParams {
  double temperature = 0;         // 0: greedy
  int top_k = 0;                  // 0: all
  double top_p = 1;               // nucleus, Holtzman et al. 2020
  double min_p = 0;               // of the best token's probability, Nguyen et al. 2024
  double repetition_penalty = 1;  // Keskar et al. 2019, over prompt and answer
  uint64_t seed = 0;
};

/// Throws Error(kUsage) for a value out of range.
void validate(const SamplingParams& params);

/// One request's sampler. Not thread-safe.
class Sampler {
 public:
  /// `history`: tokens that the repetition penalty counts before the first sample. REQUIRES: none
  /// is negative or beyond the logits.
  Sampler(const SamplingParams& params, std::span<const TokenId> history);

  /// The next token; it joins the history. Of equal logits the lowest id wins. Throws
  /// Error(kRuntime) for a logit that is NaN and, where there is a draw, for a best logit that is
  /// infinite. REQUIRES: logits is not empty.
  TokenId sample(std::span<const float> logits);

 private:
  struct Candidate {
    float logit;
    TokenId id;
  };
  std::span<const float> penalised(std::span<const float> logits);
  bool filters(size_t vocab) const;
  TokenId draw(std::span<const float> logits, double best);
  void find_candidates(std::span<const float> logits, double best);
  void cut_candidates(double best, double nucleus);
  TokenId draw_candidate(double best);

  SamplingParams params_;
  Prng prng_;
  std::vector<TokenId> history_;       // sorted, unique; empty without a penalty
  std::vector<float> penalised_;       // logits behind the penalty
  std::vector<double> blocks_;         // weights of kDrawBlock tokens each
  std::vector<Candidate> candidates_;  // what the filters may leave, best first
};

/// Finds stop strings in a stream of text, also across pieces: how the text is cut into them makes
/// no difference. The stop string that is complete first ends the text, before its first byte; of
/// several that end together, the longest does.
class StopMatcher {
 public:
  /// Throws Error(kUsage) for an empty stop string, which would end every text before it starts.
  explicit StopMatcher(std::vector<std::string> stops);

  /// Text that is safe to show now: nothing of it can belong to a stop string. After a match the
  /// rest is dropped.
  std::string feed(std::string_view text);
  /// What was held back, at the end of the stream.
  std::string flush();
  bool matched() const { return matched_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool matched_ = false;
};

}  // namespace pagezip
