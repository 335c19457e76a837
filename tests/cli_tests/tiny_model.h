// A model of random weights in a GGUF file, whole or broken in one way.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "tests/gguf_writer.h"
#include "tests/tiny_tokenizer.h"

namespace pagezip {

inline constexpr const char* kChatMl =
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% endif %}";

/// A llama of 2 layers. The numbers are what the metadata say; the tensors stay as they are.
struct TinyModel {
  std::string architecture = "llama";
  uint32_t layers = 2;
  uint32_t hidden = 64;
  uint32_t heads = 2;
  uint32_t kv_heads = 1;
  uint32_t ffn = 96;
  uint32_t context = 65536;
  std::string chat_template = kChatMl;
  std::string left_out;    // a tensor that isn't there
  std::string transposed;  // a tensor of the wrong shape
  std::string mistyped;    // a tensor of a type that there isn't

  GgufWriter writer() const;

 private:
  static constexpr int64_t kHidden = 64;
  static constexpr int64_t kHeadDim = 32;
  static constexpr int64_t kFfn = 96;
  void add(GgufWriter& writer, Prng& prng, const std::string& name,
           std::vector<int64_t> shape) const;
};

inline void TinyModel::add(GgufWriter& writer, Prng& prng, const std::string& name,
                           std::vector<int64_t> shape) const {
  if (name == left_out) return;
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(shape.size() == 1 ? 1.0f : static_cast<float>(prng.uniform() - 0.5) * 0.4f);
  }
  if (name == transposed) std::swap(shape.front(), shape.back());
  const uint32_t type = name == mistyped ? 199 : 0;  // 0: float32
  writer.add_raw_tensor(name, type, shape, std::as_bytes(std::span(values)));
}

inline GgufWriter TinyModel::writer() const {
  const TinyVocabulary vocabulary = tiny_bpe();
  GgufWriter writer = bpe_file(vocabulary);
  writer.add("general.architecture", architecture)
      .add(architecture + ".block_count", layers)
      .add(architecture + ".embedding_length", hidden)
      .add(architecture + ".attention.head_count", heads)
      .add(architecture + ".attention.head_count_kv", kv_heads)
      .add(architecture + ".feed_forward_length", ffn)
      .add(architecture + ".context_length", context)
      .add("tokenizer.ggml.eos_token_id", static_cast<uint32_t>(vocabulary.tokens.size() - 2))
      .add("tokenizer.chat_template", chat_template);
  Prng prng(1);
  const auto tokens = static_cast<int64_t>(vocabulary.tokens.size());
  add(writer, prng, "token_embd.weight", {kHidden, tokens});
  add(writer, prng, "output_norm.weight", {kHidden});
  for (int layer = 0; layer < 2; ++layer) {
    const std::string block = "blk." + std::to_string(layer) + ".";
    add(writer, prng, block + "attn_norm.weight", {kHidden});
    add(writer, prng, block + "attn_q.weight", {kHidden, 2 * kHeadDim});
    add(writer, prng, block + "attn_k.weight", {kHidden, kHeadDim});
    add(writer, prng, block + "attn_v.weight", {kHidden, kHeadDim});
    add(writer, prng, block + "attn_output.weight", {2 * kHeadDim, kHidden});
    add(writer, prng, block + "ffn_norm.weight", {kHidden});
    add(writer, prng, block + "ffn_gate.weight", {kHidden, kFfn});
    add(writer, prng, block + "ffn_up.weight", {kHidden, kFfn});
    add(writer, prng, block + "ffn_down.weight", {kFfn, kHidden});
  }
  return writer;
}

}  // namespace pagezip
