// What the scheduler counts and remembers, for metrics, logs and post-mortems. Engine thread only.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/histogram.h"
#include "scheduler/policy.h"
#include "scheduler/request.h"

namespace pagezip {

/// Counters only grow; gauges say how things are.
struct Stats {
  int64_t steps = 0;
  int64_t rows_decode = 0;
  int64_t rows_prompt = 0;      // of requests
  int64_t rows_document = 0;    // of document prefills
  int64_t rows_score = 0;       // rows of repeat prompts, once for all layers
  int64_t tokens_admitted = 0;  // of prompts, and of what preempted choices come back with
  int64_t tokens_cached = 0;    // of them, found in the prefix cache
  int64_t requests_finished = 0;
  int64_t requests_cancelled = 0;
  int64_t preemptions = 0;
  int64_t tokens_lost = 0;  // computed and thrown away by preemption
  int64_t jobs_sent_back = 0;
  int64_t jobs_done = 0;
  int64_t versions = 0;  // compressed versions published
  int64_t joins = 0;     // requests that waited for another's identical prefix
  int64_t forks = 0;
  int64_t steps_failed = 0;
  double rows_us = 0;  // measured
  double tiles_us = 0;
  double compacts_us = 0;
  // Gauges.
  int64_t running = 0;
  int64_t waiting = 0;
  int64_t jobs_running = 0;
  int64_t jobs_waiting = 0;
};

/// What a step was made of: the last of these that it had.
enum class StepKind : uint8_t { kDecode, kPrompt, kScore, kCompact };

/// How times and sizes are distributed, in microseconds but for step_rows. Failed steps don't
/// count.
struct Histograms {
  std::array<Histogram, 4> step_us;  // by StepKind
  Histogram step_rows;               // of its batch
  Histogram delay_us;        // that documents add to a step in which a token was sampled; 0 counts
  Histogram queue_us;        // of a request, from its submission to its first admission
  Histogram first_token_us;  // from its submission to its first token

  const Histogram& step(StepKind kind) const { return step_us[static_cast<size_t>(kind)]; }
};

/// The last decisions, one line each.
class DecisionLog {
 public:
  struct Entry {
    uint64_t step = 0;
    TimeUs time = 0;
    const char* what = "";
    WorkId id = 0;
    int64_t a = 0;
    int64_t b = 0;
  };

  void add(uint64_t step, TimeUs time, const char* what, WorkId id, int64_t a = 0, int64_t b = 0) {
    entries_[next_++ % entries_.size()] = {step, time, what, id, a, b};
  }
  /// Oldest first, columns aligned.
  std::string text() const;

 private:
  std::array<Entry, 256> entries_{};
  uint64_t next_ = 0;
};

}  // namespace pagezip
