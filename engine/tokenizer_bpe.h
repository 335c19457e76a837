// Byte-level BPE: regular expressions cut the text into words, ranked merges build each word.
#pragma once

#include <memory>

#include "engine/gguf.h"
#include "engine/tokenizer_encoder.h"
#include "engine/tokenizer_vocabulary.h"

namespace pagezip {

/// Reads tokenizer.ggml.pre and merges. Borrows the vocabulary. Throws Error(kModelFile).
std::unique_ptr<TextEncoder> make_bpe_encoder(const GgufFile& file, const Vocabulary& vocabulary);

}  // namespace pagezip
