// What the engine's handles of the C ABI stand for (engine.cc, engine_documents.cc).
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "api/c/guard.h"
#include "api/pagezip_engine.h"
#include "engine/engine.h"
#include "engine/loaded_model.h"

namespace pagezip::c_api {

/// What a model file gives. Immutable.
struct OpenModel {
  OpenModel(const char* path, const pagezip_model_options& options, ThreadPool& threads)
      : activations(options.exact != 0 ? ActivationType::kF32 : ActivationType::kQ8),
        loaded(path, std::nullopt, cpu_kernels(), activations, threads, [](int64_t, int64_t) {}),
        frame(loaded.frame(options.system == nullptr ? "" : options.system, std::time(nullptr))) {}

  ActivationType activations;
  LoadedModel loaded;
  PromptFrame frame;
};

/// An engine with what it borrows.
struct RunningEngine {
  RunningEngine(std::shared_ptr<const OpenModel> of, int thread_count, const EngineOptions& options)
      : model(std::move(of)),
        threads(thread_count),
        engine(model->loaded.model(), model->loaded.tokenizer(), cpu_kernels(), model->activations,
               threads, options, clock) {}

  std::shared_ptr<const OpenModel> model;
  ThreadPool threads;
  SteadyClock clock;
  Engine engine;
};

inline std::string name_of(const char* name) { return name == nullptr ? "" : name; }

inline std::string text_of(const char* text, size_t bytes, const char* what) {
  if (text == nullptr && bytes > 0) {
    throw Error(ErrorKind::kUsage, fmt::format("{} is null", what));
  }
  return bytes == 0 ? std::string() : std::string(text, bytes);
}

/// For ever, as far as waiting goes; more would overflow.
inline std::chrono::milliseconds timeout_of(int64_t ms) {
  require(ms >= 0, "timeout_ms is negative");
  return std::chrono::milliseconds(std::min(ms, int64_t{1} << 40));
}

inline Requester requester_of(const pagezip_requester* from) {
  if (from == nullptr) {
    return {};
  }
  const auto c = read_struct(from, "pagezip_requester");
  require(c.groups != nullptr || c.group_count == 0, "groups is null");
  Requester requester{name_of(c.tenant), {}};
  for (size_t i = 0; i < c.group_count; ++i) {
    requester.groups.push_back(name_of(c.groups[i]));
  }
  return requester;
}

/// Nothing for 0.
inline std::optional<double> keep_ratio_of(double ratio) {
  if (ratio == 0) {
    return std::nullopt;
  }
  require(ratio > 0 && ratio <= 1, "a keep ratio is not above 0 and at most 1");
  return ratio;
}

/// Tasks and streams may outlive their engine, and can't cancel anything then.
template <typename Handle>
void cancel(const Handle& handle, WorkId id) noexcept {
  guarded([&] {
    if (const std::shared_ptr<RunningEngine> running = handle.engine.lock()) {
      running->engine.cancel(id);
    }
    return PAGEZIP_OK;
  });
}

}  // namespace pagezip::c_api

struct pagezip_engine {
  std::shared_ptr<pagezip::c_api::RunningEngine> running;
  bool driven;
};
