// Which model a document was made with: hashes of all that turns text into KV.
//
// Any thread.
#pragma once

#include <string_view>

#include "engine/gguf.h"
#include "engine/model.h"
#include "paging/document_identity.h"

namespace pagezip {

/// `chat_template`: the source that is in use; "" if there is none. Needs no weights loaded. Throws
/// Error(kModelFile).
ModelIdentity make_model_identity(const GgufFile& file, std::string_view chat_template);

/// The source of the file's own chat template, or "".
std::string_view own_chat_template(const GgufFile& file);

}  // namespace pagezip
