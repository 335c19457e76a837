// SentencePiece-like encoding: neighbouring characters merge to the best-scored token; what is no
// token falls back to byte tokens.
#pragma once

#include <memory>

#include "engine/gguf.h"
#include "engine/tokenizer_encoder.h"
#include "engine/tokenizer_vocabulary.h"

namespace pagezip {

/// Reads tokenizer.ggml.scores. Borrows the vocabulary. `space_prefix`: text at the start, or after
/// a special token, is encoded as if a space came first. Throws Error(kModelFile).
std::unique_ptr<TextEncoder> make_spm_encoder(const GgufFile& file, const Vocabulary& vocabulary,
                                              bool space_prefix);

}  // namespace pagezip
