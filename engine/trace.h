// What an engine does, as a trace that Perfetto and chrome://tracing open (Chrome's Trace Event
// Format, JSON array).
//
//   steps      a slice for each, and inside it one for its rows, score tiles and compactions, with
//   what
//              they should have taken beside what they took
//   requests   a track for each choice: queued, prefill, decode
//   documents  a track for each job, by stage
//   counters   blocks, choices and jobs
//
// Events are buffered; a full buffer is written by whoever adds the next event. Engine thread only.
#pragma once

#include <cstdint>
#include <fstream>
#include <map>
#include <string>
#include <string_view>

#include "scheduler/policy.h"
#include "scheduler/request.h"
#include "scheduler/stats.h"
#include "scheduler/step_plan.h"

namespace pagezip {

class Trace {
 public:
  /// Starts the file anew; without a path there is none, and all calls do nothing. Throws
  /// Error(kOutput) if it can't be written.
  explicit Trace(const std::string& path);
  /// Ends what is open, and the file.
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  /// A request or, if `is_document`, a job was accepted. Before its first event.
  void submitted(WorkId id, bool is_document, TimeUs now) {
    if (is_on_) {
      open({id, 0}, is_document ? "document" : "request", "queued", now);
    }
  }
  /// After the device ran a plan and before it is committed.
  void step(const StepPlan& plan, const StepResult& result, TimeUs start, TimeUs end) {
    if (is_on_) {
      add_step(plan, result, start, end);
    }
  }
  /// What the scheduler says of requests and jobs. What wasn't submitted here is left out.
  void event(const Event& event, TimeUs now) {
    if (is_on_) {
      add_event(event, now);
    }
  }
  void counters(const Stats& stats, int64_t blocks_free, TimeUs now) {
    if (is_on_) {
      add_counters(stats, blocks_free, now);
    }
  }

 private:
  // An open track.
  struct Track {
    const char* category = "";
    const char* phase = "";
    int64_t tokens = 0;
  };
  using Tracks = std::map<ChoiceKey, Track>;

  void add_step(const StepPlan& plan, const StepResult& result, TimeUs start, TimeUs end);
  void add_event(const Event& event, TimeUs now);
  void add_counters(const Stats& stats, int64_t blocks_free, TimeUs now);
  void open(ChoiceKey key, const char* category, const char* phase, TimeUs now);
  void change(ChoiceKey key, const char* phase, TimeUs now);
  void close(Tracks::iterator track, const char* why, TimeUs now);
  void slice(const char* name, double start, double length, double predicted,
             std::string_view details);
  void async(char type, ChoiceKey key, const Track& track, std::string_view name, TimeUs now,
             std::string_view arguments);
  void add(std::string_view event);

  bool is_on_;
  std::ofstream file_;
  std::string buffer_;
  Tracks tracks_;
  TimeUs last_ = 0;
  bool is_first_ = true;
};

}  // namespace pagezip
