// What the fuzzers feed with bytes, as plain functions: tests/fuzz_corpus_test.cc runs them on the
// stored inputs with any compiler, libFuzzer on what it invents.
//
// Each function ends in a failed CHECK, or a sanitizer's report, where the code breaks a promise:
// only the right kind of Error gets out of it, its message is one line without control characters,
// and what was accepted is consistent. It returns whether the input was accepted.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "paging/block_pool.h"
#include "paging/document_file.h"

namespace pagezip::fuzz {

using Bytes = std::span<const std::byte>;

/// A GGUF file: its model, its tokenizer and its chat template.
bool fuzz_gguf(Bytes input);
/// One byte chooses a small vocabulary; the rest is text.
bool fuzz_tokenizer(Bytes input);
/// A vocabulary, and text to encode with it. One byte of options; then parts that end with a zero
/// byte: the tokens, each a byte of type and score and a text up to the next byte 1; the merges
/// likewise, without the first byte; the text.
bool fuzz_vocabulary(Bytes input);
/// The source of a chat template, rendered for a fixed conversation.
bool fuzz_template(Bytes input);
/// Roles and contents of messages, in turn, each ending with a zero byte, for fixed templates.
bool fuzz_messages(Bytes input);
/// A document file. Its size and hashes are made right first: else no change would get past them.
bool fuzz_document(Bytes input);
/// Text for the UTF-8 functions, whole and cut into pieces.
bool fuzz_utf8(Bytes input);

struct Target {
  const char* name;  // of its folder in tests/fuzz/corpus
  bool (*run)(Bytes input);
};
std::span<const Target> targets();

/// The model, in numbers, that document files must fit.
struct DocumentWorld {
  DocumentWorld();
  std::vector<KvGroup> groups;
  BlockPool pool;
  KvShape shape;
};

}  // namespace pagezip::fuzz
