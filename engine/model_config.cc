#include <fmt/format.h>

#include <cmath>

#include "base/error.h"
#include "engine/model.h"
#include "engine/utf8.h"

namespace pagezip {
namespace {

// Sanity bounds: far above any real model, far below what would overflow or exhaust memory.
constexpr uint64_t kLayersMax = 1024;
constexpr uint64_t kWidthMax = 1 << 20;

class ConfigReader {
 public:
  explicit ConfigReader(const GgufFile& file) : file_(file) {
    const auto name = file.get_string("general.architecture");
    if (!name) {
      fail("general.architecture is missing");
    }
    config.architecture = *name;
  }

  ModelConfig config;

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorKind::kModelFile, file_.path() + ": " + what);
  }
  std::string key(const char* name) const { return config.architecture + "." + name; }

  std::optional<int> size(const char* name, uint64_t max) const {
    const auto value = file_.get_uint(key(name));
    if (!value) {
      return std::nullopt;
    }
    if (*value == 0 || *value > max) {
      fail(fmt::format("{} = {} is not between 1 and {}", key(name), *value, max));
    }
    return static_cast<int>(*value);
  }
  int required_size(const char* name, uint64_t max) const {
    const auto value = size(name, max);
    if (!value) {
      fail(key(name) + " is missing");
    }
    return *value;
  }
  std::optional<double> positive(const char* name) const {
    const auto value = file_.get_float(key(name));
    if (value && !(*value > 0 && std::isfinite(*value))) {
      fail(fmt::format("{} = {} is not a positive number", key(name), *value));
    }
    return value;
  }
  const GgufFile& file() const { return file_; }

 private:
  const GgufFile& file_;
};

void read_shape(ConfigReader& r) {
  ModelConfig& c = r.config;
  c.layers = r.required_size("block_count", kLayersMax);
  c.hidden = r.required_size("embedding_length", kWidthMax);
  c.heads = r.required_size("attention.head_count", kWidthMax);
  c.kv_heads = r.size("attention.head_count_kv", kWidthMax).value_or(c.heads);
  c.ffn = r.required_size("feed_forward_length", kWidthMax);
  c.context_max = r.required_size("context_length", uint64_t{1} << 30);
  c.norm_eps = static_cast<float>(r.positive("attention.layer_norm_rms_epsilon").value_or(1e-5));
  if (c.heads % c.kv_heads != 0) {
    r.fail(fmt::format("{} heads can't be shared by {} KV heads", c.heads, c.kv_heads));
  }
  const auto key_length = r.size("attention.key_length", kWidthMax);
  if (!key_length && c.hidden % c.heads != 0) {
    r.fail(fmt::format("embedding length {} is no multiple of {} heads", c.hidden, c.heads));
  }
  c.head_dim = key_length.value_or(c.hidden / c.heads);
  if (r.size("attention.value_length", kWidthMax).value_or(c.head_dim) != c.head_dim) {
    r.fail("keys and values of different length are not supported");
  }
  if (c.head_dim % 16 != 0 || c.head_dim > 1024) {
    r.fail(fmt::format("head length {} is not supported (a multiple of 16 up to 1024 is)",
                       c.head_dim));
  }
  if (r.size("rope.dimension_count", kWidthMax).value_or(c.head_dim) != c.head_dim) {
    r.fail("RoPE on a part of the head is not supported");
  }
  if (r.file().get_uint(r.key("expert_count")).value_or(0) > 0) {
    r.fail("mixture-of-experts models are not supported");
  }
}

RopeConfig make_rope(int head_dim, double base, double position_divisor) {
  RopeConfig rope;
  for (int i = 0; i < head_dim; i += 2) {
    rope.inverse_frequency.push_back(std::pow(base, -static_cast<double>(i) / head_dim) /
                                     position_divisor);
  }
  return rope;
}

// Llama-3 scaling comes as a tensor of divisors, one for each frequency.
void apply_rope_factors(const ConfigReader& r, RopeConfig& rope) {
  const GgufTensor* tensor = r.file().find("rope_freqs.weight");
  if (tensor == nullptr) {
    return;
  }
  const size_t count = rope.inverse_frequency.size();
  if (tensor->type != WeightType::kF32 || tensor->shape.size() != 1 ||
      tensor->shape[0] != static_cast<int64_t>(count)) {
    r.fail(fmt::format("rope_freqs.weight is not a float32 vector of {}", count));
  }
  std::vector<float> factors(count);
  dequantize(tensor->type, tensor->data, factors.data(), static_cast<int64_t>(count));
  for (size_t i = 0; i < count; ++i) {
    if (!(factors[i] > 0)) {
      r.fail("rope_freqs.weight has a factor that is not positive");
    }
    rope.inverse_frequency[i] /= factors[i];
  }
}

void read_rope(ConfigReader& r) {
  ModelConfig& c = r.config;
  double divisor = 1;
  // Files from before the key of the type scale linearly, with a key of another name.
  const auto type = r.file().get_string(r.key("rope.scaling.type")).value_or("linear");
  if (type == "linear") {
    const auto factor = r.positive("rope.scaling.factor");
    divisor = factor ? *factor : r.positive("rope.scale_linear").value_or(1);
  } else if (type != "none") {
    r.fail(fmt::format("RoPE scaling of type \"{}\" is not supported", to_printable(type)));
  }
  c.rope_global = make_rope(c.head_dim, r.positive("rope.freq_base").value_or(10'000), divisor);
  apply_rope_factors(r, c.rope_global);
  if (c.window > 0) {
    c.rope_local = make_rope(c.head_dim, r.positive("rope.freq_base_swa").value_or(10'000), 1);
  }
}

void read_gemma3(ConfigReader& r) {
  constexpr int kPeriod = 6;        // every sixth layer is global, unless the file says otherwise
  constexpr int kLayersOf27B = 62;  // the one size whose query scale is not 1 / sqrt(head_dim)
  ModelConfig& c = r.config;
  c.gate = GateFunction::kGeluTanh;
  c.embedding_scale = std::sqrt(static_cast<float>(c.hidden));
  c.window = r.required_size("attention.sliding_window", uint64_t{1} << 30);
  const int period = r.size("attention.sliding_window_pattern", kLayersMax).value_or(kPeriod);
  for (int l = 0; l < c.layers; ++l) {
    c.is_global[static_cast<size_t>(l)] = (l + 1) % period == 0;
  }
  if (r.file().get_float(r.key("final_logit_softcapping")).value_or(0) != 0) {
    r.fail("soft-capped logits are not supported");
  }
  if (c.layers == kLayersOf27B) {
    c.attention_scale =
        1.0f / std::sqrt(static_cast<float>(c.hidden) / static_cast<float>(c.heads));
  }
}

}  // namespace

ModelConfig read_model_config(const GgufFile& file) {
  ConfigReader r(file);
  ModelConfig& c = r.config;
  const bool known = c.architecture == "llama" || c.architecture == "qwen2" ||
                     c.architecture == "qwen3" || c.architecture == "gemma3";
  if (!known) {
    r.fail(fmt::format("architecture \"{}\" is not supported (llama, qwen2, qwen3 and gemma3 are)",
                       to_printable(c.architecture)));
  }
  read_shape(r);
  c.is_global.assign(static_cast<size_t>(c.layers), true);
  c.attention_scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
  c.rope_style = c.architecture == "llama" ? RopeStyle::kInterleaved : RopeStyle::kHalfSplit;
  if (c.architecture == "gemma3") {
    read_gemma3(r);
  }
  read_rope(r);
  const GgufTensor* embedding = file.find("token_embd.weight");
  if (embedding == nullptr || embedding->shape.size() != 2) {
    r.fail("tensor token_embd.weight is missing or no matrix");
  }
  if (embedding->shape[1] > std::numeric_limits<int>::max()) {
    r.fail("the vocabulary is too large");
  }
  c.vocab = static_cast<int>(embedding->shape[1]);
  return c;
}

}  // namespace pagezip
