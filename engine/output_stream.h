// The output of one request on its way from the engine thread to whoever reads it.
//
// A stream never holds more than the request's own output, which its output_max bounds, and what
// was asked for of its prompt: so a slow reader costs that much memory, and never makes the engine
// wait.
//
// Thread rule: push() from the engine thread, everything else from any thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "scheduler/request.h"
#include "scheduler/step_plan.h"

namespace pagezip {

/// Why a request was not served.
enum class RefusalKind : uint8_t {
  kBusy,      // too much waits: try again later
  kTooLarge,  // more positions or blocks than there are
  kNotFound,  // no such document
  kNotReady,  // the document is still being made
  kCancelled,
  kInternal,
};

struct Refusal {
  RefusalKind kind = RefusalKind::kInternal;
  std::string message;
};

/// A token of a choice, with the text that it completed.
struct OutputEvent {
  uint32_t choice = 0;
  std::string text;  // valid UTF-8; often empty in the middle of a character or a stop string
  std::optional<TokenId> token;
  std::optional<TokenId> end_token;    // what ended the choice; isn't part of the output
  float logprob = 0;                   // of either, if asked for
  std::vector<TopLogprob> tops;        // likewise
  std::optional<FinishReason> finish;  // the choice's last event
  std::optional<Refusal> refusal;      // the request's only event
  /// If asked for: the prompt's next tokens, from its second one on. Nothing else is in the event,
  /// and all of them come before the first event of any choice.
  std::vector<TokenLogprob> prompt;
};

/// What a request used, known from its first event on; done_tokens grows before it.
struct OutputUsage {
  int64_t prompt_tokens = 0;    // its own, without the document's
  int64_t cached_tokens = 0;    // of them, found in the prefix cache
  int64_t done_tokens = 0;      // of them, cached or computed by now
  int64_t document_tokens = 0;  // positions that the document takes
  double keep_ratio = 1;        // of the version that served
  bool was_on_disk = false;     // and had to be read back from its file
};

class OutputStream {
 public:
  /// The next event; nothing after the last one, or if none comes in time.
  std::optional<OutputEvent> next(std::chrono::milliseconds wait) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, wait, [&] { return !events_.empty() || closed_; });
    if (events_.empty()) {
      return std::nullopt;
    }
    OutputEvent event = std::move(events_.front());
    events_.pop_front();
    return event;
  }
  /// Nothing more will come, and all was read.
  bool done() const {
    const std::lock_guard lock(mutex_);
    return closed_ && events_.empty();
  }
  OutputUsage usage() const {
    const std::lock_guard lock(mutex_);
    return usage_;
  }
  WorkId id() const { return id_; }

 private:
  friend class Engine;
  OutputStream(WorkId id, std::function<void()> wake) : id_(id), wake_(std::move(wake)) {}

  void push(OutputEvent event, bool last) {
    {
      const std::lock_guard lock(mutex_);
      events_.push_back(std::move(event));
      closed_ = last;
    }
    changed_.notify_all();
    if (wake_) {
      wake_();
    }
  }
  void set_usage(const OutputUsage& usage) {
    const std::lock_guard lock(mutex_);
    usage_ = usage;
  }
  void set_progress(const OutputUsage& usage) {
    set_usage(usage);
    if (wake_) {
      wake_();
    }
  }

  const WorkId id_;
  /// Called on the engine thread after every event and when usage().done_tokens grew; may be empty.
  const std::function<void()> wake_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<OutputEvent> events_;
  bool closed_ = false;
  OutputUsage usage_;
};

}  // namespace pagezip
