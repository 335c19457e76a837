#include "engine/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/error.h"

namespace pagezip {

void validate(const SamplingParams& p) {
  const auto require = [](bool ok, const char* name, double value, const char* range) {
    if (!ok) {
      throw Error(ErrorKind::kUsage, fmt::format("{} is {}, but must be {}", name, value, range));
    }
  };
  // Written so that NaN fails.
  require(p.temperature >= 0 && p.temperature <= 100, "temperature", p.temperature, "in [0, 100]");
  require(p.top_k >= 0, "top-k", p.top_k, "0 or more");
  require(p.top_p > 0 && p.top_p <= 1, "top-p", p.top_p, "in (0, 1]");
  require(p.min_p >= 0 && p.min_p <= 1, "min-p", p.min_p, "in [0, 1]");
  require(p.repetition_penalty >= 0.01 && p.repetition_penalty <= 100, "repetition penalty",
          p.repetition_penalty, "in [0.01, 100]");
}

Sampler::Sampler(const SamplingParams& params, std::span<const TokenId> history)
    : params_(params), prng_(params.seed) {
  if (params.repetition_penalty != 1) {
    history_.assign(history.begin(), history.end());
    std::sort(history_.begin(), history_.end());
    history_.erase(std::unique(history_.begin(), history_.end()), history_.end());
  }
}

TokenId Sampler::sample(std::span<const float> logits) {
  CHECK(!logits.empty());
  candidates_.resize(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i])) {
      throw Error(ErrorKind::kRuntime, "the model gave a logit that is not a number");
    }
    candidates_[i] = {logits[i], static_cast<TokenId>(i)};
  }
  for (const TokenId id : history_) {
    float& logit = candidates_[static_cast<size_t>(id)].logit;
    const auto penalty = static_cast<float>(params_.repetition_penalty);
    logit = logit > 0 ? logit / penalty : logit * penalty;
  }
  TokenId chosen = 0;
  if (params_.temperature == 0) {
    // max_element gives the first of equals, so the lowest id.
    chosen =
        std::max_element(candidates_.begin(), candidates_.end(),
                         [](const Candidate& a, const Candidate& b) { return a.logit < b.logit; })
            ->id;
  } else {
    chosen = draw(candidates_);
  }
  if (params_.repetition_penalty != 1) {
    const auto at = std::lower_bound(history_.begin(), history_.end(), chosen);
    if (at == history_.end() || *at != chosen) {
      history_.insert(at, chosen);
    }
  }
  return chosen;
}

TokenId Sampler::draw(std::vector<Candidate>& candidates) {
  const auto better = [](const Candidate& a, const Candidate& b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
  };
  size_t count = candidates.size();
  if (params_.top_k > 0) {
    count = std::min(count, static_cast<size_t>(params_.top_k));
  }
  std::partial_sort(candidates.begin(), candidates.begin() + static_cast<int64_t>(count),
                    candidates.end(), better);
  // Probabilities relative to the best token, before and after temperature.
  const double best = candidates[0].logit;
  if (!std::isfinite(best)) {
    throw Error(ErrorKind::kRuntime, "the model gave logits that are not finite");
  }
  double total = 0;
  for (size_t i = 0; i < count; ++i) {
    total += std::exp(candidates[i].logit - best);
  }
  double cumulative = 0;
  size_t kept = 0;
  while (kept < count) {
    const double relative = std::exp(candidates[kept].logit - best);
    // Not for top_p = 1: the tail's sum rounds to nothing, but a temperature above 1 can lift it.
    const bool in_nucleus = params_.top_p == 1 || cumulative < params_.top_p * total;
    if (kept > 0 && (!in_nucleus || relative < params_.min_p)) {
      break;
    }
    cumulative += relative;
    ++kept;
  }
  double mass = 0;
  for (size_t i = 0; i < kept; ++i) {
    mass += std::exp((candidates[i].logit - best) / params_.temperature);
  }
  double point = prng_.uniform() * mass;
  TokenId chosen = candidates[0].id;  // where rounding leaves a rest of `point`: the last possible
  for (size_t i = 0; i < kept && point >= 0; ++i) {
    const double weight = std::exp((candidates[i].logit - best) / params_.temperature);
    if (weight > 0) {
      chosen = candidates[i].id;
    }
    point -= weight;
  }
  return chosen;
}

StopMatcher::StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& stop : stops_) {
    if (stop.empty()) {
      throw Error(ErrorKind::kUsage, "a stop string is empty");
    }
  }
}

std::string StopMatcher::feed(std::string_view text) {
  if (matched_) {
    return {};
  }
  held_ += text;
  // Of several matches the first to end, as if the text came byte by byte; then the longest.
  size_t match = std::string::npos;
  size_t match_end = std::string::npos;
  size_t keep = 0;  // the longest end of held_ that may grow into a stop string
  for (const std::string& stop : stops_) {
    const size_t begin = held_.find(stop);
    const size_t end = begin == std::string::npos ? begin : begin + stop.size();
    if (end < match_end || (end == match_end && begin < match)) {
      match = begin;
      match_end = end;
    }
    for (size_t n = std::min(stop.size() - 1, held_.size()); n > keep; --n) {
      if (held_.compare(held_.size() - n, n, stop, 0, n) == 0) {
        keep = n;
        break;
      }
    }
  }
  if (match != std::string::npos) {
    matched_ = true;
    std::string out = held_.substr(0, match);
    held_.clear();
    return out;
  }
  std::string out = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return out;
}

std::string StopMatcher::flush() { return std::exchange(held_, {}); }

}  // namespace pagezip
