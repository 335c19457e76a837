#include "engine/loaded_model.h"

#include <utility>

#include "base/error.h"

namespace pagezip {

std::optional<ChatTemplate> make_chat_template(const std::optional<std::string>& given,
                                               const GgufFile& file, const Tokenizer& tokenizer) {
  if (!given) {
    return ChatTemplate::of_model(file, tokenizer);
  }
  const auto text_of = [&](std::optional<TokenId> id) {
    return id ? tokenizer.piece(*id) : std::string();
  };
  try {
    return ChatTemplate(*given, text_of(tokenizer.bos()), text_of(tokenizer.eos()));
  } catch (const Error& error) {
    // It is an argument here, not a part of the model.
    throw Error(ErrorKind::kUsage, error.what());
  }
}

PromptFrame make_prompt_frame(const ChatTemplate* chat_template, const Tokenizer& tokenizer,
                              const std::optional<std::string>& system, int64_t time) {
  if (system) {
    return {chat_template, tokenizer, *system, time};
  }
  try {
    return {chat_template, tokenizer, kDefaultSystem, time};
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kUsage) {
      throw;
    }
    return {chat_template, tokenizer, "", time};  // the template takes no system message
  }
}

LoadedModel::LoadedModel(const std::string& path, const std::optional<std::string>& chat_template,
                         const Kernels& kernels, ActivationType activations, ThreadPool& threads,
                         const Model::Progress& progress)
    : LoadedModel(GgufFile::open(path), chat_template, kernels, activations, threads, progress) {}

LoadedModel::LoadedModel(GgufFile file, const std::optional<std::string>& chat_template,
                         const Kernels& kernels, ActivationType activations, ThreadPool& threads,
                         const Model::Progress& progress)
    : template_source_(chat_template ? *chat_template : std::string(own_chat_template(file))),
      tokenizer_(file),
      chat_template_(make_chat_template(chat_template, file, tokenizer_)),
      model_(std::move(file), kernels, activations, threads, progress),
      identity_(make_model_identity(model_.file(), template_source_)) {}

}  // namespace pagezip
