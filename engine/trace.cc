#include "engine/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace pagezip {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 16;

const char* name_of(FinishReason reason) {
  switch (reason) {
    case FinishReason::kEnd:
      return "end";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kStopString:
      return "stop";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kFailed:
      return "failed";
  }
  return "";
}

}  // namespace

Trace::Trace(const std::string& path) : is_on_(!path.empty()) {
  if (!is_on_) {
    return;
  }
  file_.open(path, std::ios::binary | std::ios::trunc);
  if (!file_) {
    throw Error(ErrorKind::kOutput, "cannot write the trace " + path);
  }
  buffer_.reserve(kBufferBytes + 1024);
  add(R"({"name":"process_name","ph":"M","pid":1,"args":{"name":"pagezip"}})");
  add(R"({"name":"thread_name","ph":"M","pid":1,"tid":1,"args":{"name":"steps"}})");
}

Trace::~Trace() {
  while (!tracks_.empty()) {
    close(tracks_.begin(), "open", last_);
  }
  if (is_on_) {
    file_ << buffer_ << "\n]\n";
  }
}

void Trace::add(std::string_view event) {
  buffer_ += is_first_ ? "[\n" : ",\n";
  buffer_ += event;
  is_first_ = false;
  if (buffer_.size() >= kBufferBytes) {
    file_ << buffer_;
    buffer_.clear();
  }
}

// ---- steps ----

void Trace::slice(const char* name, double start, double length, double predicted,
                  std::string_view details) {
  add(fmt::format(R"({{"name":"{}","cat":"step","ph":"X","pid":1,"tid":1,"ts":{:.0f},"dur":{:.0f},)"
                  R"("args":{{"predicted_us":{:.0f},"measured_us":{:.0f}{}}}}})",
                  name, start, length, predicted, length, details));
}

void Trace::add_step(const StepPlan& plan, const StepResult& result, TimeUs start, TimeUs end) {
  last_ = std::max(last_, end);
  const auto length = static_cast<double>(end - start);
  slice(result.failed ? "failed step" : "step", static_cast<double>(start), length,
        plan.rows_us + plan.tiles_us + plan.compacts_us, fmt::format(R"(,"step":{})", plan.step));
  // The parts follow each other, and lie within the step however the device has rounded.
  double at = 0;
  const auto part = [&](const char* name, bool is_there, double us, double predicted,
                        std::string_view details) {
    us = std::min(us, length - at);
    if (is_there) {
      slice(name, static_cast<double>(start) + at, us, predicted, details);
    }
    at += us;
  };
  int64_t decode = 0;
  for (const RowsWork& work : plan.rows) {
    decode += work.rows == 1 && work.slots > 0 ? 1 : 0;
  }
  part("rows", !plan.rows.empty() || !plan.copies.empty(), result.rows_us, plan.rows_us,
       fmt::format(R"(,"rows":{},"decode":{},"pairs":{},"copies":{})", plan.batch_rows, decode,
                   plan.pairs, plan.copies.size()));
  int64_t tile_rows = 0;
  for (const ScoreTile& tile : plan.tiles) {
    tile_rows += tile.rows;
  }
  part("score tiles", !plan.tiles.empty(), result.tiles_us, plan.tiles_us,
       fmt::format(R"(,"tiles":{},"rows":{},"document":{})", plan.tiles.size(), tile_rows,
                   plan.tiles.empty() ? 0 : plan.tiles.front().job));
  part("select and compact", !plan.selects.empty() || !plan.compacts.empty(), result.compacts_us,
       plan.compacts_us,
       fmt::format(R"(,"selects":{},"layers":{})", plan.selects.size(), plan.compacts.size()));
}

void Trace::add_counters(const Stats& stats, int64_t blocks_free, TimeUs now) {
  last_ = std::max(last_, now);
  const auto counter = [&](const char* name, const std::string& values) {
    add(fmt::format(R"({{"name":"{}","ph":"C","pid":1,"ts":{},"args":{{{}}}}})", name, now,
                    values));
  };
  counter("blocks free", fmt::format(R"("blocks":{})", blocks_free));
  counter("requests", fmt::format(R"("running":{},"waiting":{})", stats.running, stats.waiting));
  counter("documents",
          fmt::format(R"("running":{},"waiting":{})", stats.jobs_running, stats.jobs_waiting));
  counter("displaced", fmt::format(R"("preemptions":{},"sent back":{})", stats.preemptions,
                                   stats.jobs_sent_back));
}

// ---- requests and documents ----

// Slices of one track nest: the phase inside the whole.
void Trace::async(char type, ChoiceKey key, const Track& track, std::string_view name, TimeUs now,
                  std::string_view arguments) {
  add(fmt::format(
      R"({{"name":"{}","cat":"{}","ph":"{}","id":"{}.{}","pid":1,"tid":1,"ts":{},"args":{{{}}}}})",
      name, track.category, type, key.request, key.choice, now, arguments));
}

void Trace::open(ChoiceKey key, const char* category, const char* phase, TimeUs now) {
  last_ = std::max(last_, now);
  const Track& track = tracks_[key] = {category, phase, 0};
  const std::string name = fmt::format("{} {}.{}", category, key.request, key.choice);
  async('b', key, track, name, now, fmt::format(R"("id":{})", key.request));
  async('b', key, track, phase, now, "");
}

void Trace::change(ChoiceKey key, const char* phase, TimeUs now) {
  const auto found = tracks_.find(key);
  if (found == tracks_.end() || std::strcmp(found->second.phase, phase) == 0) {
    return;
  }
  async('e', key, found->second, found->second.phase, now, "");
  found->second.phase = phase;
  async('b', key, found->second, phase, now, "");
}

void Trace::close(Tracks::iterator track, const char* why, TimeUs now) {
  const auto& [key, open] = *track;
  async('e', key, open, open.phase, now, "");
  async('e', key, open, fmt::format("{} {}.{}", open.category, key.request, key.choice), now,
        fmt::format(R"("finish":"{}","tokens":{})", why, open.tokens));
  tracks_.erase(track);
}

void Trace::add_event(const Event& event, TimeUs now) {
  last_ = std::max(last_, now);
  const ChoiceKey& key = event.key;
  switch (event.kind) {
    case Event::Kind::kStarted:
      change(key, "prefill", now);
      break;
    case Event::Kind::kToken:
      // A choice that was forked just now has done its prompt already.
      if (key.choice > 0 && !tracks_.contains(key)) {
        open(key, "request", "decode", now);
      }
      change(key, "decode", now);
      if (const auto found = tracks_.find(key); found != tracks_.end()) {
        ++found->second.tokens;
      }
      break;
    case Event::Kind::kProgress:
      change(key, name_of(event.stage), now);
      break;
    case Event::Kind::kScored:
      change(key, name_of(JobStage::kSelect), now);
      break;
    case Event::Kind::kPromptLogprobs:
    case Event::Kind::kFullReady:
    case Event::Kind::kVersionReady:
      break;
    case Event::Kind::kFinished:
    case Event::Kind::kJobDone:
    case Event::Kind::kJobFailed:
      if (const auto found = tracks_.find(key); found != tracks_.end()) {
        close(found,
              event.kind == Event::Kind::kFinished  ? name_of(event.finish)
              : event.kind == Event::Kind::kJobDone ? "done"
                                                    : "failed",
              now);
      }
      break;
  }
}

}  // namespace pagezip
