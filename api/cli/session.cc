#include "api/cli/session.h"

#include <fmt/format.h>

#include <ctime>
#include <utility>

#include "api/cli/files.h"
#include "base/error.h"

namespace pagezip {
namespace {

std::string template_source(const std::string& path, const GgufFile& file) {
  return path.empty() ? std::string(own_chat_template(file)) : read_text(path, "chat template");
}

// `path`: where the source is from; "": the model file.
std::optional<ChatTemplate> load_template(const std::string& path, const std::string& source,
                                          const GgufFile& file, const Tokenizer& tokenizer) {
  if (path.empty()) {
    return ChatTemplate::of_model(file, tokenizer);
  }
  const auto text_of = [&](std::optional<TokenId> id) {
    return id ? tokenizer.piece(*id) : std::string();
  };
  try {
    return ChatTemplate(source, text_of(tokenizer.bos()), text_of(tokenizer.eos()));
  } catch (const Error& error) {
    // The file is an argument here, not a part of the model.
    throw Error(ErrorKind::kUsage, error.what());
  }
}

PromptFrame make_frame(const std::optional<ChatTemplate>& chat_template, const Tokenizer& tokenizer,
                       const std::optional<std::string>& system) {
  const ChatTemplate* chat = chat_template ? &*chat_template : nullptr;
  const int64_t now = std::time(nullptr);
  if (system) {
    return {chat, tokenizer, *system, now};
  }
  try {
    return {chat, tokenizer, kDefaultSystem, now};
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kUsage) {
      throw;
    }
    return {chat, tokenizer, "", now};  // the template takes no system message
  }
}

}  // namespace

Session::Session(const RuntimeOptions& options, const CompressionOptions* compression,
                 Progress& progress)
    : options_(options),
      file_(GgufFile::open(options.model)),
      tokenizer_(file_),
      template_source_(template_source(options.chat_template, file_)),
      chat_template_(load_template(options.chat_template, template_source_, file_, tokenizer_)),
      frame_(make_frame(chat_template_, tokenizer_, options.system)),
      threads_(options.threads),
      kernels_(options.reference_backend ? reference_kernels() : cpu_kernels()) {
  pipeline_options_.kv_type = options.kv_type;
  pipeline_options_.page_tokens = options.page_tokens;
  if (compression != nullptr) {
    pipeline_options_.chunk_tokens = compression->chunk_tokens;
    pipeline_options_.score_function = compression->score_function;
  }
  const ModelConfig config = read_model_config(file_);
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
  model_ = std::make_unique<const Model>(file_, kernels_, options.activations, threads_, report);
  identity_ = make_model_identity(*model_, template_source_);
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
