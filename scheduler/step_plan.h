// One step: what the device shall compute, and what came out.
//
// A step does, in this order: copies (of forked tails), rows (decode and prefill in one batch),
// score tiles, selections, compactions. A plan is plain data that the scheduler owns; pointers in
// it stay valid until the step is committed, also if later steps are planned meanwhile.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "kernels/kv_view.h"
#include "paging/document.h"
#include "paging/selection.h"
#include "scheduler/request.h"

namespace pagezip {

/// A token that an earlier step samples. `step` 0: none.
struct SlotRef {
  uint64_t step = 0;
  int64_t slot = 0;
};

/// Consecutive tokens of one sequence: some rows of a prompt, or the one row of a decode step.
struct RowsWork {
  ChoiceKey key;  // or a document job's id
  bool document_job = false;
  uint64_t incarnation = 0;  // of its stay in the pool; changes when it is preempted
  uint32_t lane = 0;         // the scheduler's own number of the choice
  int64_t first_token = 0;   // of StepPlan::tokens
  int64_t rows = 0;
  SlotRef token_from;          // if set: the only row's token
  int64_t first_position = 0;  // logical
  int64_t first_view = 0;      // of StepPlan::views, one for each KV group
  int64_t first_slot = 0;      // the last row's logits are sampled `slots` times,
  int64_t slots = 0;           // for choices key.choice, key.choice + 1, ...
  // Rows [target_row, target_row + targets) are asked how probable the token behind each was.
  int64_t target_row = 0;
  int64_t targets = 0;
  int64_t first_target = 0;  // of StepPlan::targets
};

/// The pairs of a partly filled last block, copied for a fork.
struct CopyWork {
  int64_t first_source = 0;  // of StepPlan::views, one for each KV group: one segment each
  int64_t first_target = 0;
  int64_t first_pair = 0;  // the pairs [first_pair, end_pair) of both
  int64_t end_pair = 0;
};

/// Rows of one layer of one chunk's repeat prompt.
struct ScoreTile {
  WorkId job = 0;
  uint64_t incarnation = 0;  // of the job's stay in the pool
  const Document* full = nullptr;
  const ScoreChunk* chunk = nullptr;
  int layer = 0;
  int64_t first_row = 0;
  int64_t rows = 0;
  ScoreSet* scores = nullptr;  // running maxima, in and out
};

struct SelectWork {
  WorkId job = 0;
  uint64_t incarnation = 0;
  bool of_source = false;  // what the job's source was cut to
  const ScoreSet* scores = nullptr;
  VersionSpec spec;
};

/// All heads of one layer.
struct CompactWork {
  WorkId job = 0;
  uint64_t incarnation = 0;
  const DocumentBuilder* builder = nullptr;
  int layer = 0;
};

struct StepPlan {
  uint64_t step = 0;   // 1, 2, ...
  uint64_t epoch = 0;  // how many failures the scheduler knew of
  std::vector<RowsWork> rows;
  std::vector<CopyWork> copies;
  std::vector<ScoreTile> tiles;
  std::vector<SelectWork> selects;
  std::vector<CompactWork> compacts;
  std::vector<TokenId> tokens;
  std::vector<TokenId> targets;  // tokens of prompts whose log-probabilities are asked for
  std::vector<KvView> views;     // the first view_count of them; the rest is room of earlier steps
  int64_t view_count = 0;
  int64_t slots = 0;
  int64_t batch_rows = 0;  // all rows together
  int64_t pairs = 0;       // rows x keys, summed over all rows
  // What the parts should take, in microseconds.
  double rows_us = 0;
  double tiles_us = 0;
  double compacts_us = 0;
  double document_rows_us = 0;  // of rows_us, what the rows of documents add
  bool decode_only = true;      // no row of a prompt

  bool empty() const {
    return rows.empty() && copies.empty() && tiles.empty() && selects.empty() && compacts.empty();
  }
  /// A view without segments; valid until the next one is added. Views are large: emptying and
  /// filling whole ones would be most of a plan's time.
  KvView& add_view() {
    if (view_count == static_cast<int64_t>(views.size())) {
      views.emplace_back();
    }
    KvView& view = views[static_cast<size_t>(view_count++)];
    view.count = 0;
    return view;
  }
  void clear();
};

struct TopLogprob {
  TokenId token = 0;
  float logprob = 0;
  friend bool operator==(const TopLogprob&, const TopLogprob&) = default;
};

/// How probable the model found a token of a prompt.
struct TokenLogprob {
  TokenId token = 0;  // negative: the logits are not numbers
  float logprob = 0;
  std::vector<TopLogprob> tops;
  friend bool operator==(const TokenLogprob&, const TokenLogprob&) = default;
};

struct StepResult {
  uint64_t step = 0;
  /// The device failed: nothing of the step counts, and its work will be planned again. Steps of
  /// the same epoch that come after it must fail too, because they build on it.
  bool failed = false;
  std::vector<TokenId> tokens;                // [slots]; negative: could not be sampled
  std::vector<float> logprobs;                // [slots], of the tokens; empty: nobody asked
  std::vector<std::vector<TopLogprob>> tops;  // [slots], likewise
  std::vector<TokenLogprob> targets;          // [targets]
  std::vector<Selection> selections;          // [selects]
  // What the parts took, in microseconds; 0: not measured.
  double rows_us = 0;
  double tiles_us = 0;
  double compacts_us = 0;  // and selections
  void clear();
};

/// Runs steps: the CPU or CUDA backend, or the simulation's. Engine thread only.
class Device {
 public:
  virtual ~Device() = default;
  /// Runs a plan to its end; steps come in order. `result` is filled anew.
  virtual void run(const StepPlan& plan, StepResult& result) = 0;
};

}  // namespace pagezip
