// A document being made, as its owner sees it.
//
// Thread rule: the engine thread writes, everybody may read.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "scheduler/request.h"

namespace pagezip {

class DocumentTask {
 public:
  enum class State : uint8_t { kWorking, kDone, kFailed };
  struct Version {
    VersionSpec spec;
    int64_t kv_bytes = 0;  // of the blocks that it pins
  };
  struct Status {
    State state = State::kWorking;
    JobStage stage = JobStage::kQueued;
    int64_t done = 0;  // tokens, or layers of a compaction
    int64_t total = 0;
    int64_t full_bytes = 0;  // of every pair
    std::vector<Version> versions;
    std::string error;
  };

  explicit DocumentTask(WorkId id) : id_(id) {}
  WorkId id() const { return id_; }
  Status status() const {
    const std::lock_guard lock(mutex_);
    return status_;
  }
  /// True when the document is ready or has failed.
  bool wait(std::chrono::milliseconds time) const {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, time, [&] { return status_.state != State::kWorking; });
  }

 private:
  friend class Engine;
  void fail(const std::string& why) {
    update([&](Status& status) {
      status.state = State::kFailed;
      status.error = why;
    });
  }
  template <typename Change>
  void update(const Change& change) {
    {
      const std::lock_guard lock(mutex_);
      change(status_);
    }
    changed_.notify_all();
  }

  const WorkId id_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  Status status_;
};

}  // namespace pagezip
