// The model and the engine behind the server, from before they are loaded until they end.
//
// Thread rule: the I/O thread, but for load().
#pragma once

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "api/http/exchange.h"
#include "api/http/options.h"
#include "engine/engine.h"
#include "engine/loaded_model.h"

namespace pagezip::http {

class Service {
 public:
  enum class Phase : uint8_t { kLoading, kReady, kDraining, kFailed };

  Service(asio::io_context& io, const ServeOptions& options);
  ~Service();
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  /// Loads on a thread of its own; `done` is called on the I/O thread with an error, or null.
  /// `progress` is called on the loading thread.
  void start(const Model::Progress& progress, std::function<void(std::exception_ptr)> done);
  /// Refuses new work from now on.
  void drain() { phase_ = Phase::kDraining; }
  /// Ends what runs, and writes documents that have files. The I/O thread waits for it.
  void stop();
  /// Also after stop().
  void cancel(WorkId id);

  Phase phase() const { return phase_; }
  /// Layers of the model that are loaded, and all; before that is known 0 and 0.
  std::pair<int64_t, int64_t> load_progress() const { return {loaded_layers_, layers_}; }
  /// Throws ApiError(503) while loading or draining.
  void need_ready() const;

  const ServeOptions& options() const { return options_; }
  const std::string& model_name() const { return model_name_; }
  int64_t started_s() const { return started_s_; }
  asio::io_context& io() { return io_; }
  // REQUIRES: was ready.
  const LoadedModel& model() const { return *model_; }
  Engine& engine() { return *engine_; }
  int64_t engine_context_max() const { return engine_->context_max(); }
  int vocabulary() const { return model_->model().config().vocab; }
  const KvGeometry& geometry() const { return geometry_; }
  int64_t pool_blocks() const { return pool_blocks_; }
  const char* kernels_name() const { return kernels_->name; }
  const Clock& clock() const { return clock_; }

  /// Runs `work` beside the I/O thread: for what takes more than a millisecond.
  template <typename Result>
  asio::awaitable<Result> on_worker(std::function<Result()> work) {
    co_return co_await asio::co_spawn(
        worker_,
        [](std::function<Result()> run) -> asio::awaitable<Result> {
          co_return run();
        }(std::move(work)),
        asio::use_awaitable);
  }
  /// What the engine answers at its next step. Throws ApiError(503) if it ended.
  template <typename Result>
  asio::awaitable<Result> answer(std::future<Result> future) {
    asio::steady_timer timer(io_);
    for (auto pause = kPauseMin; future.wait_for(std::chrono::seconds(0)) != kReady;
         pause = std::min(pause * 2, kPauseMax)) {
      timer.expires_after(pause);
      co_await timer.async_wait(asio::use_awaitable);
    }
    co_return future.get();
  }

 private:
  static constexpr std::chrono::microseconds kPauseMin{500};
  static constexpr std::chrono::microseconds kPauseMax{16'000};
  static constexpr std::future_status kReady = std::future_status::ready;

  void load(const Model::Progress& progress);
  int64_t choose_pool() const;

  asio::io_context& io_;
  const ServeOptions options_;
  const Kernels* kernels_;
  std::string model_name_;
  SteadyClock clock_;
  int64_t started_s_;
  std::atomic<Phase> phase_ = Phase::kLoading;
  std::atomic<int64_t> loaded_layers_ = 0;
  std::atomic<int64_t> layers_ = 0;
  std::thread loader_;
  asio::thread_pool worker_;
  // Made by the loader, and used when it is done:
  std::unique_ptr<ThreadPool> threads_;
  std::unique_ptr<LoadedModel> model_;
  KvGeometry geometry_;
  int64_t pool_blocks_ = 0;
  std::unique_ptr<Engine> engine_;
};

/// Wakes a coroutine of the I/O thread from any thread. Wake-ups before a wait aren't lost; many
/// may become one.
class Wakeup : public std::enable_shared_from_this<Wakeup> {
 public:
  explicit Wakeup(asio::io_context& io) : io_(io), timer_(io) {}

  /// Any thread.
  void notify();
  /// Until notify(), or until the time is over. I/O thread.
  asio::awaitable<void> wait(std::chrono::milliseconds time);

 private:
  asio::io_context& io_;
  asio::steady_timer timer_;
  std::atomic<bool> notified_ = false;
};

}  // namespace pagezip::http
