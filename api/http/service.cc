#include "api/http/service.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/post.hpp>
#include <filesystem>

#include "api/http/api_error.h"
#include "base/error.h"

namespace pagezip::http {
namespace {

constexpr int64_t kPoolContexts = 16;  // of the model's longest context, that a pool holds at most

}  // namespace

Service::Service(asio::io_context& io, const ServeOptions& options)
    : io_(io),
      options_(options),
      kernels_(&kernels_of(options.backend)),
      model_name_(options.model_name.empty() ? std::filesystem::path(options.model).stem().string()
                                             : options.model_name),
      started_s_(clock_.unix_s()),
      worker_(1) {
  // Texts of others must not slow down the model's threads. Linux knows priorities of threads.
  asio::post(worker_, [] { setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), 10); });
}

Service::~Service() {
  if (loader_.joinable()) {
    loader_.join();
  }
  stop();
}

void Service::start(const Model::Progress& progress, std::function<void(std::exception_ptr)> done) {
  loader_ = std::thread([this, progress, done = std::move(done)] {
    std::exception_ptr error;
    try {
      load(progress);
      engine_->start();
      // A signal may have come first.
      Phase loading = Phase::kLoading;
      phase_.compare_exchange_strong(loading, Phase::kReady);
    } catch (...) {
      error = std::current_exception();
      phase_ = Phase::kFailed;
    }
    asio::post(io_, [done, error] { done(error); });
  });
}

void Service::load(const Model::Progress& progress) {
  threads_ = std::make_unique<ThreadPool>(options_.threads);
  const auto report = [&](int64_t done, int64_t total) {
    loaded_layers_ = done;
    layers_ = total;
    progress(done, total);
    if (phase_ == Phase::kDraining) {
      throw Error(ErrorKind::kRuntime, "interrupted while the model was loaded");
    }
  };
  model_ = std::make_unique<LoadedModel>(options_.model, options_.chat_template, *kernels_,
                                         options_.activations, *threads_, report);
  EngineOptions engine = options_.engine;
  const int limit = model_->model().config().context_max;
  if (engine.context_max && *engine.context_max > limit) {
    throw Error(ErrorKind::kUsage, fmt::format("--context: {} is above the model's limit of {}",
                                               *engine.context_max, limit));
  }
  geometry_ = model_->model().kv_geometry(engine.kv_type, engine.page_tokens);
  pool_blocks_ = choose_pool();
  engine.pool_blocks = pool_blocks_;
  engine.file_bytes_max = options_.documents_mib_max << 20;
  engine.identity = model_->identity();
  engine.provenance = fmt::format("pagezip {}, {} kernels", PAGEZIP_VERSION, kernels_->name);
  engine_ = std::make_unique<Engine>(model_->model(), model_->tokenizer(), *kernels_,
                                     options_.activations, *threads_, engine, clock_);
}

int64_t Service::choose_pool() const {
  const int64_t block = geometry_.block_bytes();
  if (options_.pool_mib > 0) {
    const int64_t blocks = (options_.pool_mib << 20) / block;
    if (blocks < 16) {
      throw Error(ErrorKind::kUsage,
                  fmt::format("--pool-mib: {} MiB are less than 16 blocks of {} bytes",
                              options_.pool_mib, block));
    }
    return blocks;
  }
  const int64_t context =
      options_.engine.context_max.value_or(model_->model().config().context_max);
  const auto groups = static_cast<int64_t>(model_->model().kv_groups().size());
  const int64_t wanted = kPoolContexts * groups * (context / options_.engine.page_tokens + 1);
  const int64_t fits = kernels_->memory->bytes_free() / 2 / block;
  return std::max<int64_t>(16, fits > 0 ? std::min(wanted, fits) : wanted);
}

void Service::stop() {
  worker_.join();
  if (engine_ != nullptr) {
    engine_->stop();
    engine_.reset();
  }
}

void Service::cancel(WorkId id) {
  if (engine_ != nullptr) {
    engine_->cancel(id);
  }
}

void Service::need_ready() const {
  switch (phase_.load()) {
    case Phase::kReady:
      return;
    case Phase::kLoading:
      throw ApiError(503, "loading", "Loading model").with_header("Retry-After", "1");
    case Phase::kDraining:
      throw ApiError(503, "draining", "the server is shutting down")
          .with_header("Retry-After", "5");
    case Phase::kFailed:
      throw ApiError(503, "failed", "the model can't be loaded");
  }
}

void Wakeup::notify() {
  if (!notified_.exchange(true)) {
    asio::post(io_, [self = shared_from_this()] { self->timer_.cancel(); });
  }
}

asio::awaitable<void> Wakeup::wait(std::chrono::milliseconds time) {
  timer_.expires_after(time);
  if (!notified_) {
    co_await timer_.async_wait(asio::as_tuple(asio::use_awaitable));
  }
  notified_ = false;
}

}  // namespace pagezip::http
