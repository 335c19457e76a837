// A model file with what is made of it, without its weights and with them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/chat_template.h"
#include "engine/model.h"
#include "engine/model_identity.h"
#include "engine/prompt.h"
#include "engine/tokenizer.h"

namespace pagezip {

inline constexpr const char* kDefaultSystem = "You are a helpful assistant.";

/// A model file with all that is known of it without its weights. Immutable; any thread.
class ModelFile {
 public:
  /// `chat_template`: instead of the file's own. Throws Error(kModelFile) for what is wrong with
  /// the file, Error(kUsage) for what is wrong with `chat_template`.
  ModelFile(const std::string& path, const std::optional<std::string>& chat_template);
  ModelFile(const ModelFile&) = delete;
  ModelFile& operator=(const ModelFile&) = delete;

  const GgufFile& file() const { return file_; }
  const Tokenizer& tokenizer() const { return tokenizer_; }
  /// Null: the model has none.
  const ChatTemplate* chat_template() const {
    return chat_template_.has_value() ? &*chat_template_ : nullptr;
  }
  const std::string& template_source() const { return template_source_; }
  /// What documents of this model, tokenizer and chat template have in common.
  const ModelIdentity& identity() const { return identity_; }
  /// What stands around documents. Without `system`: kDefaultSystem, where the template takes one.
  /// Throws Error(kUsage) where it doesn't take `system`.
  PromptFrame frame(const std::optional<std::string>& system, int64_t time) const;

 private:
  GgufFile file_;
  std::string template_source_;
  Tokenizer tokenizer_;
  std::optional<ChatTemplate> chat_template_;
  ModelIdentity identity_;
};

/// With its weights, to serve it.
class LoadedModel : public ModelFile {
 public:
  LoadedModel(const std::string& path, const std::optional<std::string>& chat_template,
              const Kernels& kernels, ActivationType activations, ThreadPool& threads,
              const Model::Progress& progress)
      : ModelFile(path, chat_template), model_(file(), kernels, activations, threads, progress) {}

  const Model& model() const { return model_; }

 private:
  Model model_;
};

}  // namespace pagezip
