#include "engine/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
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

namespace {

// The largest, or NaN if there is one.
float largest(std::span<const float> logits) {
  constexpr size_t kLanes = 16;  // independent ones, for the compiler to do at once
  std::array<float, kLanes> most{};
  most.fill(-std::numeric_limits<float>::infinity());
  std::array<uint32_t, kLanes> nans{};
  const auto look = [&](size_t lane, float x) {
    most[lane] = x > most[lane] ? x : most[lane];
    nans[lane] |= x != x ? 1u : 0u;
  };
  size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      look(lane, logits[i + lane]);
    }
  }
  for (; i < logits.size(); ++i) {
    look(0, logits[i]);
  }
  const bool nan = std::any_of(nans.begin(), nans.end(), [](uint32_t n) { return n != 0; });
  return nan ? std::numeric_limits<float>::quiet_NaN()
             : *std::max_element(most.begin(), most.end());
}

// exp((logit - best) / temperature) to float's precision: a vocabulary has 10^5 of them, and for
// most tokens all that matters is that they are tiny.
double weight(float logit, double best, double temperature) {
  constexpr double kNothing = -100;  // float ends at -103
  const double power = (logit - best) / temperature;
  return power > kNothing ? std::exp(static_cast<float>(power)) : 0;
}

float logit_of(float logit) { return logit; }
float logit_of(const auto& candidate) { return candidate.logit; }

double mass_of(const auto& tokens, double best) {
  double sum = 0;
  for (const auto& token : tokens) {
    sum += weight(logit_of(token), best, 1);
  }
  return sum;
}

// The item whose weight `point` falls into, where they lie one behind the other; the last possible
// one where rounding leaves a rest. Takes the weights before it from `point`.
size_t pick(double& point, size_t count, const auto& weight_of) {
  size_t chosen = 0;
  for (size_t i = 0; i < count; ++i) {
    const double own = weight_of(i);
    chosen = own > 0 ? i : chosen;
    if (point < own) {
      break;
    }
    point -= own;
  }
  return chosen;
}

// Tokens whose weights are added up before the draw, and looked at one by one only in the block
// that it falls into.
constexpr size_t kDrawBlock = 512;

}  // namespace

TokenId Sampler::sample(std::span<const float> logits) {
  CHECK(!logits.empty());
  logits = penalised(logits);
  const float best = largest(logits);
  if (std::isnan(best)) {
    throw Error(ErrorKind::kRuntime, "the model gave a logit that is not a number");
  }
  TokenId chosen = 0;
  if (params_.temperature == 0) {
    chosen = static_cast<TokenId>(std::find(logits.begin(), logits.end(), best) - logits.begin());
  } else if (!std::isfinite(best)) {
    throw Error(ErrorKind::kRuntime, "the model gave logits that are not finite");
  } else if (filters(logits.size())) {
    find_candidates(logits, best);
    chosen = draw_candidate(best);
  } else {
    chosen = draw(logits, best);
  }
  if (params_.repetition_penalty != 1) {
    const auto at = std::lower_bound(history_.begin(), history_.end(), chosen);
    if (at == history_.end() || *at != chosen) {
      history_.insert(at, chosen);
    }
  }
  return chosen;
}

std::span<const float> Sampler::penalised(std::span<const float> logits) {
  if (history_.empty()) {
    return logits;
  }
  penalised_.assign(logits.begin(), logits.end());
  const auto penalty = static_cast<float>(params_.repetition_penalty);
  for (const TokenId id : history_) {
    float& logit = penalised_[static_cast<size_t>(id)];
    logit = logit > 0 ? logit / penalty : logit * penalty;
  }
  return penalised_;
}

bool Sampler::filters(size_t vocab) const {
  return (params_.top_k > 0 && static_cast<size_t>(params_.top_k) < vocab) || params_.top_p < 1 ||
         params_.min_p > 0;
}

// From all tokens, in the order of their ids: nothing has to be sorted.
TokenId Sampler::draw(std::span<const float> logits, double best) {
  const auto weight_of = [&](float logit) { return weight(logit, best, params_.temperature); };
  blocks_.clear();
  double mass = 0;
  for (size_t first = 0; first < logits.size(); first += kDrawBlock) {
    double sum = 0;
    for (const float logit : logits.subspan(first, std::min(kDrawBlock, logits.size() - first))) {
      sum += weight_of(logit);
    }
    blocks_.push_back(sum);
    mass += sum;
  }
  double point = prng_.uniform() * mass;
  const size_t block = pick(point, blocks_.size(), [&](size_t b) { return blocks_[b]; });
  const std::span<const float> rest = logits.subspan(block * kDrawBlock);
  const size_t token =
      pick(point, std::min(kDrawBlock, rest.size()), [&](size_t i) { return weight_of(rest[i]); });
  return static_cast<TokenId>(block * kDrawBlock + token);
}

// Filters leave the first tokens of the order "larger logit, then lower id", mostly few of a
// vocabulary. So those near the best are taken and sorted, and more only where they don't do.
void Sampler::find_candidates(std::span<const float> logits, double best) {
  const bool by_count = params_.top_k > 0 && static_cast<size_t>(params_.top_k) < logits.size();
  const bool by_mass = params_.top_p < 1 && !by_count;
  double total = by_mass ? mass_of(logits, best) : 0;
  const auto enough = [&](double margin) {
    if (by_count && candidates_.size() >= static_cast<size_t>(params_.top_k)) {
      return true;
    }
    // The nucleus of the top k needs all k.
    if (!(by_count && params_.top_p < 1) && std::exp(-margin) < params_.min_p) {
      return true;
    }
    return by_mass && mass_of(candidates_, best) >= params_.top_p * total;
  };
  constexpr double kAll = 1024;  // wider than any model's logits
  for (double margin = 4;; margin *= 2) {
    candidates_.clear();
    for (size_t i = 0; i < logits.size(); ++i) {
      if (margin >= kAll || logits[i] >= best - margin) {
        candidates_.push_back({logits[i], static_cast<TokenId>(i)});
      }
    }
    if (margin >= kAll || enough(margin)) {
      break;
    }
  }
  std::sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
  });
  if (by_count) {
    candidates_.resize(static_cast<size_t>(params_.top_k));
    total = mass_of(candidates_, best);
  }
  cut_candidates(best, params_.top_p * total);
}

// To those of the nucleus that min-p leaves, at least the best.
void Sampler::cut_candidates(double best, double nucleus) {
  double cumulative = 0;
  size_t kept = 0;
  while (kept < candidates_.size()) {
    const double relative = std::exp(candidates_[kept].logit - best);
    // Not for top_p = 1: the tail's sum rounds to nothing, but a temperature above 1 can lift it.
    const bool in_nucleus = params_.top_p == 1 || cumulative < nucleus;
    if (kept > 0 && (!in_nucleus || relative < params_.min_p)) {
      break;
    }
    cumulative += relative;
    ++kept;
  }
  candidates_.resize(kept);
}

TokenId Sampler::draw_candidate(double best) {
  const auto weight_of = [&](size_t i) {
    return std::exp((candidates_[i].logit - best) / params_.temperature);
  };
  double mass = 0;
  for (size_t i = 0; i < candidates_.size(); ++i) {
    mass += weight_of(i);
  }
  double point = prng_.uniform() * mass;
  return candidates_[pick(point, candidates_.size(), weight_of)].id;
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
