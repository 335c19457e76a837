#include "engine/model_device.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "base/error.h"
#include "engine/compaction.h"

namespace pagezip {
namespace {

constexpr size_t kRecentSteps = 4;
// Targets whose logits are there at once: rows x vocabulary of a whole batch would be too much.
constexpr int64_t kSliceRows = 32;

// The best `count` tokens with their log-probabilities, best first; of equals the lowest id.
std::vector<TopLogprob> best_logprobs(std::span<const float> logits, double log_sum, int count) {
  std::vector<TopLogprob> all(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    all[i] = {static_cast<TokenId>(i), static_cast<float>(logits[i] - log_sum)};
  }
  const auto middle = all.begin() + std::min<int64_t>(count, static_cast<int64_t>(all.size()));
  std::partial_sort(all.begin(), middle, all.end(), [](const TopLogprob& a, const TopLogprob& b) {
    return a.logprob > b.logprob || (a.logprob == b.logprob && a.token < b.token);
  });
  all.erase(middle, all.end());
  return all;
}

double log_sum_exp(std::span<const float> logits) {
  const float most = *std::max_element(logits.begin(), logits.end());
  const double sum = std::accumulate(logits.begin(), logits.end(), 0.0, [&](double s, float x) {
    return s + std::exp(static_cast<double>(x) - static_cast<double>(most));
  });
  return static_cast<double>(most) + std::log(sum);
}

TokenLogprob logprob_of(TokenId token, std::span<const float> logits, int count) {
  const double log_sum = log_sum_exp(logits);
  if (!std::isfinite(log_sum)) {
    return {-1, 0, {}};
  }
  return {token, static_cast<float>(logits[static_cast<size_t>(token)] - log_sum),
          best_logprobs(logits, log_sum, count)};
}

}  // namespace

ModelDevice::ModelDevice(Transformer& transformer, int64_t score_rows_max, const Clock& clock)
    : transformer_(transformer),
      clock_(clock),
      slot_(transformer, ScoreFunction::kProbability, score_rows_max),
      logits_(*transformer.kernels().memory),
      slice_(*transformer.kernels().memory) {}

void ModelDevice::begin(ChoiceKey key, const ChoiceSampling& sampling,
                        std::span<const TokenId> history) {
  samplers_.insert_or_assign(key, Entry{Sampler(sampling.params, history), sampling.top_logprobs,
                                        sampling.prompt_logprobs});
}

void ModelDevice::run(const StepPlan& plan, StepResult& result) {
  result.clear();
  result.step = plan.step;
  // The cost model learns from these times.
  const auto now = [&] {
    transformer_.kernels().memory->wait();
    return clock_.now_us();
  };
  const int64_t start = now();
  run_copies(plan);
  run_rows(plan, result);
  const int64_t rows_done = now();
  for (const ScoreTile& tile : plan.tiles) {
    slot_.run_tile(*tile.full, *tile.chunk, tile.layer, tile.first_row, tile.rows, *tile.scores);
  }
  const int64_t tiles_done = now();
  for (const SelectWork& work : plan.selects) {
    result.selections.push_back(select(*work.scores, work.spec));
  }
  for (const CompactWork& work : plan.compacts) {
    copy_layer(*work.builder, transformer_.kernels(), transformer_.pool(), work.layer);
  }
  result.rows_us = static_cast<double>(rows_done - start);
  result.tiles_us = static_cast<double>(tiles_done - rows_done);
  result.compacts_us = static_cast<double>(now() - tiles_done);
}

void ModelDevice::run_copies(const StepPlan& plan) {
  const std::vector<KvGroup>& groups = transformer_.model().kv_groups();
  const PageLayout& page = transformer_.page();
  for (const CopyWork& work : plan.copies) {
    pairs_.resize(static_cast<size_t>(work.end_pair - work.first_pair));
    std::iota(pairs_.begin(), pairs_.end(), static_cast<uint32_t>(work.first_pair));
    for (size_t g = 0; g < groups.size(); ++g) {
      const Segment& source = plan.views[static_cast<size_t>(work.first_source) + g].segments[0];
      const Segment& target = plan.views[static_cast<size_t>(work.first_target) + g].segments[0];
      const std::vector<std::span<const uint32_t>> lists(static_cast<size_t>(source.heads), pairs_);
      for (int layer = 0; layer < static_cast<int>(groups[g].layers.size()); ++layer) {
        transformer_.kernels().copy_pairs(
            {page, &source, page, &target, layer, 0, lists, work.first_pair}, transformer_.pool());
      }
    }
  }
}

TokenId ModelDevice::sampled(SlotRef slot) const {
  const auto step = std::find_if(recent_.begin(), recent_.end(),
                                 [&](const auto& entry) { return entry.first == slot.step; });
  CHECK(step != recent_.end());
  return step->second[static_cast<size_t>(slot.slot)];
}

void ModelDevice::run_rows(const StepPlan& plan, StepResult& result) {
  result.tokens.assign(static_cast<size_t>(plan.slots), 0);
  result.logprobs.assign(static_cast<size_t>(plan.slots), 0);
  result.tops.resize(static_cast<size_t>(plan.slots));
  result.targets.resize(plan.targets.size());
  if (plan.rows.empty()) {
    return;
  }
  const auto groups = static_cast<int64_t>(transformer_.model().kv_groups().size());
  tokens_.clear();
  tokens_.reserve(plan.rows.size());  // spans point into it
  spans_.clear();
  int64_t sampled_rows = 0;
  for (const RowsWork& work : plan.rows) {
    RowSpan& span = spans_.emplace_back();
    if (work.token_from.step == 0) {
      span.tokens =
          std::span(plan.tokens)
              .subspan(static_cast<size_t>(work.first_token), static_cast<size_t>(work.rows));
    } else {
      CHECK_EQ(work.rows, 1);
      span.tokens = {&tokens_.emplace_back(sampled(work.token_from)), 1};
    }
    span.first_position = work.first_position;
    span.views = std::span(plan.views)
                     .subspan(static_cast<size_t>(work.first_view), static_cast<size_t>(groups));
    span.logits = work.slots > 0;
    sampled_rows += span.logits ? 1 : 0;
  }
  const int64_t vocab = transformer_.model().config().vocab;
  logits_.resize(std::max(logits_.size(), sampled_rows * vocab));
  transformer_.forward(spans_, {logits_.device(), sampled_rows, vocab});
  logits_.to_host(0, sampled_rows * vocab);
  std::vector<const RowsWork*> sampled;
  sampled.reserve(static_cast<size_t>(sampled_rows));
  for (const RowsWork& work : plan.rows) {
    if (work.slots > 0) {
      sampled.push_back(&work);
    }
  }
  const MatrixView<const float> logits(logits_.host(), sampled_rows, vocab);
  transformer_.pool().parallel_for(sampled_rows, [&](int64_t row, int) {
    sample(*sampled[static_cast<size_t>(row)], {logits.row(row), static_cast<size_t>(vocab)},
           result);
  });
  run_targets(plan, result);
  recent_.emplace_back(plan.step, result.tokens);
  if (recent_.size() > kRecentSteps) {
    recent_.erase(recent_.begin());
  }
}

// Behind forward(), whose hidden states are still there.
void ModelDevice::run_targets(const StepPlan& plan, StepResult& result) {
  const int64_t vocab = transformer_.model().config().vocab;
  int64_t first_row = 0;  // of the batch
  for (const RowsWork& work : plan.rows) {
    const auto found = work.targets == 0 ? samplers_.end() : samplers_.find(work.key);
    for (int64_t done = 0; found != samplers_.end() && done < work.targets; done += kSliceRows) {
      const int64_t rows = std::min(kSliceRows, work.targets - done);
      slice_.resize(std::max(slice_.size(), rows * vocab));
      transformer_.logits(transformer_.hidden(first_row + work.target_row + done, rows),
                          {slice_.device(), rows, vocab});
      slice_.to_host(0, rows * vocab);
      const MatrixView<const float> logits(slice_.host(), rows, vocab);
      transformer_.pool().parallel_for(rows, [&](int64_t row, int) {
        const auto target = static_cast<size_t>(work.first_target + done + row);
        result.targets[target] =
            logprob_of(plan.targets[target], {logits.row(row), static_cast<size_t>(vocab)},
                       found->second.prompt_logprobs);
      });
    }
    first_row += work.rows;
  }
}

// On any thread: no two rows have a choice or a slot in common.
void ModelDevice::sample(const RowsWork& work, std::span<const float> logits, StepResult& result) {
  for (int64_t i = 0; i < work.slots; ++i) {
    const auto slot = static_cast<size_t>(work.first_slot + i);
    const auto found =
        samplers_.find({work.key.request, work.key.choice + static_cast<uint32_t>(i)});
    if (found == samplers_.end()) {
      continue;  // it ended while this step was in flight
    }
    Entry& entry = found->second;
    try {
      result.tokens[slot] = entry.sampler.sample(logits);
    } catch (const Error&) {
      result.tokens[slot] = -1;  // the end of this choice, not of the others
      continue;
    }
    if (entry.top_logprobs >= 0) {
      const double log_sum = log_sum_exp(logits);
      result.logprobs[slot] =
          static_cast<float>(logits[static_cast<size_t>(result.tokens[slot])] - log_sum);
      result.tops[slot] = best_logprobs(logits, log_sum, entry.top_logprobs);
    }
  }
}

}  // namespace pagezip
