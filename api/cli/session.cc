#include "api/cli/session.h"

#include <fmt/format.h>

#include <ctime>
#include <utility>

#include "api/cli/files.h"
#include "base/error.h"

namespace pagezip {
namespace {

/// Instead of the file's own.
std::optional<std::string> given_template(const RuntimeOptions& options) {
  if (options.chat_template.empty()) {
    return std::nullopt;
  }
  return read_text(options.chat_template, "chat template");
}

}  // namespace

Session::Session(const RuntimeOptions& options, const CompressionOptions* compression,
                 Progress& progress, const IdentityCheck& check)
    : options_(options),
      file_(options.model, given_template(options)),
      frame_(file_.frame(options.system, std::time(nullptr))),
      threads_(options.threads),
      kernels_(kernels_of(options.backend)) {
  if (check) {
    check(file_.identity());
  }
  pipeline_options_.kv_type = options.kv_type;
  pipeline_options_.page_tokens = options.page_tokens;
  if (compression != nullptr) {
    pipeline_options_.chunk_tokens = compression->chunk_tokens;
    pipeline_options_.score_function = compression->score_function;
  }
  const ModelConfig config = read_model_config(file_.file());
  if (options.context > config.context_max) {
    throw Error(ErrorKind::kUsage, fmt::format("--context: {} is above the model's limit of {}",
                                               options.context, config.context_max));
  }
  if (options.context > 0) {
    pipeline_options_.context_max = options.context;
  }
  progress.start("load", "layers", config.layers);
  const auto report = [&](int64_t done, int64_t) {
    if (!progress.advance(done)) {
      throw Cancelled();
    }
  };
  model_ =
      std::make_unique<const Model>(file_.file(), kernels_, options.activations, threads_, report);
  load_ms_ = progress.finish();
}

int64_t Session::context_max() const {
  return pipeline_options_.context_max.value_or(model_->config().context_max);
}

void Session::start(int64_t blocks_needed) {
  const int64_t block_bytes =
      model_->kv_geometry(options_.kv_type, options_.page_tokens).block_bytes();
  int64_t blocks = blocks_needed;
  if (options_.pool_mib > 0) {
    blocks = (options_.pool_mib << 20) / block_bytes;
    if (blocks < blocks_needed) {
      const int64_t mib = ((blocks_needed * block_bytes - 1) >> 20) + 1;
      throw Error(ErrorKind::kOutOfMemory,
                  fmt::format("the KV pool is too small: this job needs --pool-mib {}", mib));
    }
  }
  pipeline_.emplace(*model_, kernels_, options_.activations, threads_, pipeline_options_, blocks);
}

}  // namespace pagezip
