#include "engine/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "base/error.h"

namespace pagezip {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TokenId sample_once(const SamplingParams& params, const std::vector<float>& logits,
                    const std::vector<TokenId>& history = {}) {
  return Sampler(params, history).sample(logits);
}

std::vector<TokenId> draws(const SamplingParams& params, const std::vector<float>& logits,
                           int count) {
  Sampler sampler(params, {});
  std::vector<TokenId> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(sampler.sample(logits));
  return tokens;
}

std::vector<float> random_logits(Prng& prng, size_t count) {
  std::vector<float> logits(count);
  for (float& logit : logits) logit = static_cast<float>(prng.uniform() * 8 - 4);
  return logits;
}

/// The kind of the error that `action` ends with; fails the test if there is none.
ErrorKind error_kind(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.kind();
  }
  ADD_FAILURE() << "no error";
  return ErrorKind::kOutput;
}

// ---- which token --------------------------------------------------------------------------------

TEST(Sampler, GreedyTakesTheBestAndOfEqualsTheLowestId) {
  EXPECT_EQ(sample_once({}, {3}), 0);
  EXPECT_EQ(sample_once({}, {1, 3, 2}), 1);
  EXPECT_EQ(sample_once({}, {1, 3, 2, 3, 3}), 1);
  EXPECT_EQ(sample_once({}, {-0.0f, 0.0f}), 0);
  EXPECT_EQ(sample_once({}, {-kInfinity, -5, -kInfinity}), 1);
  EXPECT_THAT(draws({}, {0, 2, 2, 1}, 20), Each(1));
  for (const size_t count : {15, 16, 17, 100}) {
    for (size_t at = 0; at < count; ++at) {
      std::vector<float> logits(count, -1);
      logits[at] = 1;
      logits.back() = 1;
      EXPECT_EQ(sample_once({}, logits), static_cast<TokenId>(at));
      logits[at] = kNan;
      EXPECT_EQ(error_kind([&] { sample_once({}, logits); }), ErrorKind::kRuntime);
    }
  }
}

TEST(Sampler, TopOneOfEqualsIsTheLowestId) {
  SamplingParams params;
  params.temperature = 1;
  params.top_k = 1;
  EXPECT_THAT(draws(params, {0, 2, 2, 1}, 50), Each(1));
}

TEST(Sampler, LogitsWithoutADistributionAreErrors) {
  SamplingParams drawn;
  drawn.temperature = 1;
  for (const auto& logits : std::vector<std::vector<float>>{{kNan}, {1, kNan, 2}, {1, 2, -kNan}}) {
    EXPECT_EQ(error_kind([&] { sample_once({}, logits); }), ErrorKind::kRuntime);
    EXPECT_EQ(error_kind([&] { sample_once(drawn, logits); }), ErrorKind::kRuntime);
  }
  EXPECT_EQ(error_kind([&] { sample_once(drawn, {0, kInfinity}); }), ErrorKind::kRuntime);
  EXPECT_EQ(error_kind([&] { sample_once(drawn, {-kInfinity, -kInfinity}); }), ErrorKind::kRuntime);
}

TEST(Sampler, SameSeedSameTokens) {
  Prng prng(1);
  const std::vector<float> logits = random_logits(prng, 1000);
  SamplingParams params;
  params.temperature = 1;
  params.seed = 5;
  const std::vector<TokenId> tokens = draws(params, logits, 100);
  EXPECT_EQ(draws(params, logits, 100), tokens);
  params.seed = 6;
  EXPECT_NE(draws(params, logits, 100), tokens);
}

// ---- the distribution ---------------------------------------------------------------------------

/// Draws many times and compares with softmax(logits / temperature) by Pearson's statistic.
void expect_softmax(double temperature, const std::vector<float>& logits) {
  constexpr int kDraws = 100'000;
  SamplingParams params;
  params.temperature = temperature;
  params.seed = 17;
  std::vector<int> seen(logits.size(), 0);
  for (const TokenId token : draws(params, logits, kDraws)) ++seen[static_cast<size_t>(token)];
  const double best = *std::max_element(logits.begin(), logits.end());
  double total = 0;
  for (const float logit : logits) total += std::exp((logit - best) / temperature);
  double statistic = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double expected = kDraws * std::exp((logits[i] - best) / temperature) / total;
    if (expected == 0) {
      EXPECT_EQ(seen[i], 0);
      continue;
    }
    statistic += (seen[i] - expected) * (seen[i] - expected) / expected;
  }
  // Mean n - 1, deviation sqrt(2 (n - 1)): five deviations and a little for small n.
  const auto degrees = static_cast<double>(logits.size()) - 1;
  EXPECT_LT(statistic, degrees + 5 * std::sqrt(2 * degrees) + 5) << "temperature " << temperature;
}

TEST(Sampler, DrawsFromTheSoftmax) {
  for (const double temperature : {0.5, 1.0, 2.0, 100.0}) {
    expect_softmax(temperature, {1, 0, -1, 1, 2.5f, -0.5f, 0});
    expect_softmax(temperature, {-kInfinity, 3, 3, -kInfinity});
  }
  Prng prng(4);
  std::vector<float> many = random_logits(prng, 1500);  // more than one block of the draw
  expect_softmax(1, many);
  std::fill(many.begin(), many.begin() + 1100, -kInfinity);
  expect_softmax(3, many);
  // Unlikely enough for sums to swallow it, until the temperature lifts it.
  expect_softmax(40, {0, -40, -60});
}

TEST(Sampler, ATinyTemperatureIsGreedy) {
  SamplingParams params;
  params.temperature = 1e-300;
  EXPECT_THAT(draws(params, {1, 3, 2, -kInfinity}, 50), Each(1));
}

// ---- filters ------------------------------------------------------------------------------------

/// The tokens that the filters leave, straight from their definitions.
std::set<TokenId> naive_kept(const SamplingParams& params, const std::vector<float>& logits) {
  std::vector<TokenId> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto logit = [&](TokenId id) { return logits[static_cast<size_t>(id)]; };
  std::stable_sort(order.begin(), order.end(),
                   [&](TokenId a, TokenId b) { return logit(a) > logit(b); });
  if (params.top_k > 0 && static_cast<size_t>(params.top_k) < order.size()) {
    order.resize(static_cast<size_t>(params.top_k));
  }
  double total = 0;
  for (const TokenId id : order) total += std::exp(double{logit(id)});
  std::set<TokenId> kept;
  double before = 0;  // probability of the better tokens
  for (const TokenId id : order) {
    const double probability = std::exp(double{logit(id)}) / total;
    const double relative = std::exp(double{logit(id)} - double{logit(order[0])});
    const bool in_nucleus = params.top_p == 1 || before < params.top_p;
    if (kept.empty() || (in_nucleus && relative >= params.min_p)) kept.insert(id);
    before += probability;
  }
  return kept;
}

TEST(Sampler, FiltersKeepExactlyTheirTokens) {
  Prng prng(3);
  int all_seen = 0;
  for (int round = 0; round < 600; ++round) {
    // Also more tokens than are looked at in one go, and logits that lie far apart.
    std::vector<float> logits = random_logits(prng, prng.chance(0.7) ? 12 : prng.range(500, 2000));
    const double spread = prng.chance(0.5) ? 1 : prng.uniform() * 8;
    for (float& logit : logits) logit = static_cast<float>(logit * spread);
    SamplingParams params;
    params.temperature = 100;  // nearly uniform: every token that is left comes up
    params.seed = static_cast<uint64_t>(round);
    if (prng.chance(0.5)) params.top_k = static_cast<int>(prng.range(1, 14));
    if (prng.chance(0.5)) params.top_p = 1 - prng.uniform();
    if (prng.chance(0.5)) params.min_p = prng.uniform();
    const std::vector<TokenId> tokens = draws(params, logits, 500);
    const std::set<TokenId> seen(tokens.begin(), tokens.end());
    const std::set<TokenId> kept = naive_kept(params, logits);
    const auto description = testing::Message() << "top-k " << params.top_k << ", top-p "
                                                << params.top_p << ", min-p " << params.min_p;
    if (kept.size() < 20) {
      ++all_seen;
      EXPECT_EQ(seen, kept) << description;
    } else {
      EXPECT_TRUE(std::includes(kept.begin(), kept.end(), seen.begin(), seen.end())) << description;
    }
  }
  EXPECT_GT(all_seen, 400);
}

TEST(Sampler, TheBestTokenIsAlwaysKept) {
  SamplingParams params;
  params.temperature = 1;
  params.top_p = 1e-300;
  params.min_p = 1;
  EXPECT_THAT(draws(params, {0, 1, 1}, 50), Each(1));
  params.top_p = 1;
  EXPECT_THAT(draws(params, {0, 1, 1}, 50), testing::Contains(2));  // as likely as the best
}

// ---- repetition penalty -------------------------------------------------------------------------

TEST(Sampler, PenaltyLowersSeenTokensOfEitherSign) {
  SamplingParams params;
  params.repetition_penalty = 2;
  EXPECT_EQ(sample_once(params, {2, 1.5f}), 0);
  EXPECT_EQ(sample_once(params, {2, 1.5f}, {0}), 1);  // 2 becomes 1
  EXPECT_EQ(sample_once(params, {2, 0.9f}, {0}), 0);
  EXPECT_EQ(sample_once(params, {-1, -1.5f}, {0}), 1);  // -1 becomes -2
  EXPECT_EQ(sample_once(params, {-1, -2.5f}, {0}), 0);
  EXPECT_EQ(sample_once(params, {2, 0.9f}, {0, 0, 0}), 0);  // how often doesn't matter
  params.repetition_penalty = 0.5;                          // a reward
  EXPECT_EQ(sample_once(params, {2, 1.5f}, {1}), 1);
  EXPECT_EQ(sample_once(params, {-1, -1.5f}, {1}), 1);
}

TEST(Sampler, PenaltyCountsWhatWasSampled) {
  SamplingParams params;
  params.repetition_penalty = 2;
  EXPECT_THAT(draws(params, {4, 3, 2.5f}, 4), ElementsAre(0, 1, 2, 0));
  params.repetition_penalty = 1;
  EXPECT_THAT(draws(params, {4, 3, 2.5f}, 4), Each(0));
}

TEST(Sampler, PenaltyComesBeforeTheFilters) {
  SamplingParams params;
  params.temperature = 1;
  params.top_k = 1;
  params.repetition_penalty = 2;
  EXPECT_EQ(sample_once(params, {2, 1.5f}, {0}), 1);
}

// ---- validate -----------------------------------------------------------------------------------

TEST(SamplingParams, RangesAreChecked) {
  EXPECT_NO_THROW(validate({}));
  const double nan = kNan;
  const double infinity = kInfinity;
  const std::map<std::string, std::pair<double SamplingParams::*, std::vector<double>>> bad = {
      {"temperature", {&SamplingParams::temperature, {-0.1, 100.1, nan, infinity}}},
      {"top-p", {&SamplingParams::top_p, {0, -1, 1.01, nan, infinity}}},
      {"min-p", {&SamplingParams::min_p, {-0.01, 1.01, nan, infinity}}},
      {"repetition penalty",
       {&SamplingParams::repetition_penalty, {0, -1, 1e-50, 0.009, 100.1, nan, infinity}}},
  };
  const auto expect_error = [](const std::string& name, const SamplingParams& params) {
    try {
      validate(params);
      ADD_FAILURE() << name << " has no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      EXPECT_THAT(error.what(), HasSubstr(name));
    }
  };
  for (const auto& [name, values] : bad) {
    for (const double value : values.second) {
      SamplingParams params;
      params.*values.first = value;
      expect_error(name, params);
    }
  }
  SamplingParams params;
  params.top_k = -1;
  expect_error("top-k", params);
  for (const double penalty : {0.01, 100.0}) {
    EXPECT_NO_THROW(validate({100, 1 << 30, 1e-300, 1, penalty, UINT64_MAX}));
  }
}

// ---- stop strings -------------------------------------------------------------------------------

TEST(StopMatcher, HoldsBackOnlyWhatMayBecomeAStop) {
  StopMatcher matcher({"\n\nUser:"});
  EXPECT_EQ(matcher.feed("Hello.\n"), "Hello.");
  EXPECT_EQ(matcher.feed("World\n\nUs"), "\nWorld");
  EXPECT_EQ(matcher.feed("e no\n\nUser"), "\n\nUse no");
  EXPECT_FALSE(matcher.matched());
  EXPECT_EQ(matcher.feed(": more"), "");
  EXPECT_TRUE(matcher.matched());
  EXPECT_EQ(matcher.feed("dropped"), "");
  EXPECT_EQ(matcher.flush(), "");
}

TEST(StopMatcher, AtTheVeryStart) {
  StopMatcher matcher({"ab"});
  EXPECT_EQ(matcher.feed("a"), "");
  EXPECT_EQ(matcher.feed("bc"), "");
  EXPECT_TRUE(matcher.matched());
}

TEST(StopMatcher, FlushGivesWhatWasHeld) {
  StopMatcher matcher({"abc"});
  EXPECT_EQ(matcher.feed("xab"), "x");
  EXPECT_EQ(matcher.flush(), "ab");
  EXPECT_EQ(matcher.flush(), "");
  EXPECT_FALSE(matcher.matched());
}

TEST(StopMatcher, WithoutStopsNothingIsHeld) {
  StopMatcher matcher({});
  EXPECT_EQ(matcher.feed("abc"), "abc");
  EXPECT_EQ(matcher.feed(""), "");
  EXPECT_EQ(matcher.flush(), "");
}

TEST(StopMatcher, AnEmptyStopIsAUsageError) {
  EXPECT_EQ(error_kind([] { StopMatcher({"a", ""}); }), ErrorKind::kUsage);
}

/// Reads byte by byte and looks at all the text so far each time.
struct NaiveStops {
  std::string shown;  // all that may be shown
  bool matched = false;

  NaiveStops(const std::vector<std::string>& stops, const std::string& text) {
    for (size_t end = 0; end <= text.size() && !matched; ++end) {
      const std::string so_far = text.substr(0, end);
      size_t longest = 0;     // stop string that ends here
      size_t unfinished = 0;  // longest end that is the start of a stop string
      for (const std::string& stop : stops) {
        if (so_far.ends_with(stop)) longest = std::max(longest, stop.size());
        for (size_t n = 1; n < stop.size(); ++n) {
          if (so_far.ends_with(stop.substr(0, n))) unfinished = std::max(unfinished, n);
        }
      }
      matched = longest > 0;
      shown = so_far.substr(0, end - (matched ? longest : unfinished));
    }
  }
};

TEST(StopMatcher, EqualsTheNaiveOracleHoweverTheTextIsCut) {
  Prng prng(9);
  const auto random_text = [&prng](size_t length) {
    std::string text(length, 'a');
    for (char& c : text) c = static_cast<char>('a' + prng.below(2));
    return text;
  };
  int matches = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::vector<std::string> stops(prng.below(4));
    for (std::string& stop : stops) stop = random_text(prng.below(5) + 1);
    const std::string text = random_text(prng.below(14));
    StopMatcher matcher(stops);
    std::string shown;
    for (size_t at = 0; at < text.size();) {
      const size_t count = prng.below(5);  // also nothing
      shown += matcher.feed(std::string_view(text).substr(at, count));
      at = std::min(at + count, text.size());
      // A later byte never takes back what is shown, and nothing waits without need.
      const NaiveStops oracle(stops, text.substr(0, at));
      ASSERT_EQ(shown, oracle.shown) << text << ", stops " << testing::PrintToString(stops);
      ASSERT_EQ(matcher.matched(), oracle.matched);
    }
    const NaiveStops oracle(stops, text);
    shown += matcher.flush();
    ASSERT_EQ(shown, oracle.matched ? oracle.shown : text);
    matches += oracle.matched ? 1 : 0;
  }
  EXPECT_GT(matches, 5'000);
}

}  // namespace
}  // namespace pagezip
