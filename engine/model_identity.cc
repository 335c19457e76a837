#include "engine/model_identity.h"

#include <xxhash.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

namespace pagezip {
namespace {

// Hashes of metadata as the file has them, and not of what is computed from them: a mathematics
// library's last bit must not make another model.
class MetadataHash {
 public:
  explicit MetadataHash(const GgufFile& file) : file_(file) {}

  // What is missing differs from what is empty or zero.
  void add_string(const char* key) { add_optional(file_.get_string(key)); }
  void add_float(const std::string& key) { add_optional(file_.get_float(key)); }
  void add_uint(const std::string& key) { add_optional(file_.get_uint(key)); }
  void add_bool(const char* key) { add_optional(file_.get_bool(key)); }
  void add_ints(const char* key) { add_optional(file_.get_ints(key)); }
  void add_floats(const char* key) { add_optional(file_.get_floats(key)); }
  void add_strings(const char* key) {
    const auto texts = file_.get_strings(key);
    add_value(texts ? texts->size() + 1 : 0);
    for (const std::string_view text : texts.value_or(std::vector<std::string_view>())) {
      add_list(text);
    }
  }
  void add_list(const auto& list) {
    add_value(list.size());
    const auto bytes = std::as_bytes(std::span(list));
    bytes_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  uint64_t digest() const { return XXH3_64bits(bytes_.data(), bytes_.size()); }

 private:
  template <typename T>
  void add_value(const T& value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  template <typename T>
  void add_optional(const std::optional<T>& value) {
    add_value(value.has_value());
    if (value) {
      if constexpr (requires { value->size(); }) {
        add_list(*value);
      } else {
        add_value(*value);
      }
    }
  }

  const GgufFile& file_;
  std::string bytes_;
};

uint64_t tokenizer_hash(const GgufFile& file) {
  MetadataHash hash(file);
  hash.add_string("tokenizer.ggml.model");
  hash.add_string("tokenizer.ggml.pre");
  hash.add_strings("tokenizer.ggml.tokens");
  hash.add_ints("tokenizer.ggml.token_type");
  hash.add_floats("tokenizer.ggml.scores");
  hash.add_strings("tokenizer.ggml.merges");
  hash.add_bool("tokenizer.ggml.add_bos_token");
  hash.add_bool("tokenizer.ggml.add_space_prefix");
  hash.add_uint("tokenizer.ggml.bos_token_id");
  hash.add_uint("tokenizer.ggml.eos_token_id");
  return hash.digest();
}

uint64_t rope_hash(const GgufFile& file, const std::string& architecture) {
  const std::string rope = architecture + ".rope.";
  MetadataHash hash(file);
  hash.add_list(architecture);  // the style of the rotation
  hash.add_float(rope + "freq_base");
  hash.add_float(rope + "freq_base_swa");
  hash.add_float(rope + "scale_linear");
  hash.add_float(rope + "scaling.factor");
  hash.add_string((rope + "scaling.type").c_str());
  const GgufTensor* factors = file.find("rope_freqs.weight");
  hash.add_list(factors == nullptr ? std::span<const std::byte>()
                                   : std::span(factors->data, static_cast<size_t>(factors->bytes)));
  return hash.digest();
}

}  // namespace

// Reading every byte would cost as much as loading, so of each tensor the name, type, shape and its
// first and last kilobyte count.
uint64_t weights_fingerprint(const GgufFile& file) {
  constexpr int64_t kSample = 1024;
  XXH3_state_t* state = XXH3_createState();
  XXH3_64bits_reset(state);
  for (const GgufTensor& tensor : file.tensors()) {
    const int64_t sample = std::min(kSample, tensor.bytes);
    XXH3_64bits_update(state, tensor.name.data(), tensor.name.size());
    XXH3_64bits_update(state, &tensor.type, sizeof(tensor.type));
    XXH3_64bits_update(state, tensor.shape.data(), tensor.shape.size() * sizeof(int64_t));
    XXH3_64bits_update(state, tensor.data, static_cast<size_t>(sample));
    XXH3_64bits_update(state, tensor.data + tensor.bytes - sample, static_cast<size_t>(sample));
  }
  const uint64_t hash = XXH3_64bits_digest(state);
  XXH3_freeState(state);
  return hash;
}

ModelIdentity make_model_identity(const GgufFile& file, std::string_view chat_template) {
  ModelIdentity identity;
  identity.weights = weights_fingerprint(file);
  identity.tokenizer = tokenizer_hash(file);
  identity.rope = rope_hash(file, read_model_config(file).architecture);
  identity.chat_template = XXH3_64bits(chat_template.data(), chat_template.size());
  return identity;
}

std::string_view own_chat_template(const GgufFile& file) {
  return file.get_string("tokenizer.chat_template").value_or("");
}

}  // namespace pagezip
