// A model file with all that is made of it to serve it.
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

/// `given`: instead of the file's own template. Throws Error(kUsage) for what is wrong with it.
std::optional<ChatTemplate> make_chat_template(const std::optional<std::string>& given,
                                               const GgufFile& file, const Tokenizer& tokenizer);
/// What stands around documents. Without `system`: kDefaultSystem, where the template takes one.
/// `chat_template` may be null.
PromptFrame make_prompt_frame(const ChatTemplate* chat_template, const Tokenizer& tokenizer,
                              const std::optional<std::string>& system, int64_t time);

/// Immutable; any thread.
class LoadedModel {
 public:
  /// `chat_template`: instead of the file's own. Throws Error(kModelFile) for what is wrong with
  /// the file, Error(kUsage) for what is wrong with `chat_template`.
  LoadedModel(const std::string& path, const std::optional<std::string>& chat_template,
              const Kernels& kernels, ActivationType activations, ThreadPool& threads,
              const Model::Progress& progress);
  LoadedModel(const LoadedModel&) = delete;
  LoadedModel& operator=(const LoadedModel&) = delete;

  const Model& model() const { return model_; }
  const Tokenizer& tokenizer() const { return tokenizer_; }
  /// Null: the model has none.
  const ChatTemplate* chat_template() const {
    return chat_template_.has_value() ? &*chat_template_ : nullptr;
  }
  const std::string& template_source() const { return template_source_; }
  /// What documents of this model, tokenizer and chat template have in common.
  const ModelIdentity& identity() const { return identity_; }

  PromptFrame frame(const std::optional<std::string>& system, int64_t time) const {
    return make_prompt_frame(chat_template(), tokenizer_, system, time);
  }

 private:
  std::string template_source_;
  Tokenizer tokenizer_;
  std::optional<ChatTemplate> chat_template_;
  Model model_;
  ModelIdentity identity_;

  LoadedModel(GgufFile file, const std::optional<std::string>& chat_template,
              const Kernels& kernels, ActivationType activations, ThreadPool& threads,
              const Model::Progress& progress);
};

}  // namespace pagezip
