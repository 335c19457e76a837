#include "engine/loaded_model.h"

#include "base/error.h"

namespace pagezip {
namespace {

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

}  // namespace

ModelFile::ModelFile(const std::string& path, const std::optional<std::string>& chat_template)
    : file_(GgufFile::open(path)),
      template_source_(chat_template ? *chat_template : std::string(own_chat_template(file_))),
      tokenizer_(file_),
      chat_template_(make_chat_template(chat_template, file_, tokenizer_)),
      identity_(make_model_identity(file_, template_source_)) {}

PromptFrame ModelFile::frame(const std::optional<std::string>& system, int64_t time) const {
  if (system) {
    return {chat_template(), tokenizer_, *system, time};
  }
  try {
    return {chat_template(), tokenizer_, kDefaultSystem, time};
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kUsage) {
      throw;
    }
    return {chat_template(), tokenizer_, "", time};  // the template takes no system message
  }
}

}  // namespace pagezip
