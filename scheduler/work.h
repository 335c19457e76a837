// The scheduler's own books on requests, choices and document jobs.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "paging/block_pool.h"
#include "paging/block_table.h"
#include "paging/document.h"
#include "paging/prefix_index.h"
#include "scheduler/policy.h"
#include "scheduler/request.h"
#include "scheduler/step_plan.h"

namespace pagezip {

struct TenantState {
  double served_us = 0;  // virtual time: what its work cost so far
  int64_t open = 0;      // requests and jobs
};

/// One sequence being computed. `planned` rows are in plans or done, `committed` ones are done.
struct Lane {
  std::unique_ptr<Sequence> sequence;  // null: not in the pool
  int64_t planned = 0;
  int64_t committed = 0;
  uint64_t incarnation = 0;
  uint64_t last_step = 0;  // the last one that uses its blocks
  PrefixIndex::Cursor cursor;
  BlockReservation blocks;
  BlockReservation fork_blocks;  // for the choices that will be forked from it

  /// Blocks that come free when the lane ends, at least.
  int64_t blocks_held() const { return sequence != nullptr ? sequence->blocks_held() : 0; }
};

struct RequestState;

struct Choice {
  ChoiceKey key;
  uint32_t lane_index = 0;
  RequestState* request = nullptr;
  std::vector<TokenId> tokens;  // prompt, then output
  int64_t outputs = 0;
  int64_t prompt = 0;   // tokens to compute before the next one is sampled
  int64_t pending = 0;  // samples in flight
  SlotRef last_sample;  // the youngest of them
  Lane lane;
  // While waiting:
  TimeUs waiting_since = 0;
  std::optional<ChoiceKey> leader;  // who computes the same prefix
  int64_t leader_length = 0;        // pairs that both have in common
  int64_t inherited = INT64_MIN;    // the highest urgency among those who wait for it

  bool running() const { return lane.sequence != nullptr; }
  bool decoding() const { return lane.planned >= prompt; }
};

struct RequestState {
  RequestSpec spec;
  TimeUs arrived = 0;
  TenantState* tenant = nullptr;
  int64_t document_keys = 0;  // that a row reads of the document, on average over the heads
  bool started = false;       // it was admitted once
  bool forked = false;        // all choices exist
  int64_t scored = 0;         // rows of the prompt whose log-probabilities were told
  std::map<uint32_t, std::unique_ptr<Choice>> choices;

  /// Some log-probabilities of the prompt are still to be told.
  bool scores() const {
    return spec.prompt_logprobs && scored < static_cast<int64_t>(spec.prompt.size()) - 1;
  }
};

struct Job {
  DocumentSpec spec;
  TimeUs arrived = 0;
  TenantState* tenant = nullptr;
  std::vector<TokenId> tokens;  // prefix, then context
  int64_t parent_keys = 0;      // that a row reads of the parent, on average over the heads
  JobStage stage = JobStage::kQueued;
  Lane lane;
  std::shared_ptr<const Document> full;
  // Scoring. Rows before (chunk, layer, row) are in plans or done; chunks before chunks_done are
  // done.
  std::shared_ptr<ScoreSet> scores;
  std::shared_ptr<const ScoreSet> final_scores;
  size_t chunk = 0;
  int layer = 0;
  int64_t row = 0;
  size_t chunks_done = 0;
  // Versions.
  size_t version = 0;
  bool selecting = false;  // in flight
  KeptSets source_kept;    // of a source that was cut
  std::optional<DocumentBuilder> builder;
  int layers_planned = 0;
  int layers_done = 0;
};

/// The tail of a forked choice, to be copied before its first row runs.
struct ForkCopy {
  std::vector<BlockRun> source;  // pins what is read
  ChoiceKey target;
  uint64_t incarnation = 0;
  int64_t first_pair = 0;
  int64_t end_pair = 0;
};

/// What ended while steps that may use it were in flight.
struct Fence {
  uint64_t step = 0;  // the last of them
  std::unique_ptr<Sequence> sequence;
  std::shared_ptr<const Document> document;
  std::unique_ptr<Job> job;
};

}  // namespace pagezip
