#include "engine/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>
#include <string_view>

#include "base/error.h"

namespace pagezip {
namespace {

constexpr std::string_view kRopeFactorsTensor = "rope_freqs.weight";  // part of the configuration

// Reads tensors by name and checks their shapes.
class Loader {
 public:
  Loader(const GgufFile& file, const Kernels& kernels, ActivationType activations, ThreadPool& pool)
      : file_(file), kernels_(kernels), activations_(activations), pool_(pool) {}

  /// y = x · Wᵀ with x of `cols` and y of `rows` values, not packed yet.
  Weight raw_matrix(const std::string& name, int64_t rows, int64_t cols) {
    const GgufTensor& tensor = required(name);
    if (tensor.shape.size() != 2 || tensor.shape[0] != cols || tensor.shape[1] != rows) {
      fail_shape(tensor, fmt::format("[{}, {}]", cols, rows));
    }
    Weight weight;
    weight.type = tensor.type;
    weight.rows = rows;
    weight.cols = cols;
    weight.source = tensor.data;
    return weight;
  }
  void pack(Weight& weight) const { kernels_.pack(weight, activations_, pool_); }
  Weight matrix(const std::string& name, int64_t rows, int64_t cols) {
    Weight weight = raw_matrix(name, rows, cols);
    pack(weight);
    return weight;
  }
  DeviceArray<float> vector(const std::string& name, int64_t size) {
    const GgufTensor& tensor = required(name);
    if (tensor.shape.size() != 1 || tensor.shape[0] != size) {
      fail_shape(tensor, fmt::format("[{}]", size));
    }
    std::vector<float> values(static_cast<size_t>(size));
    dequantize(tensor.type, tensor.data, values.data(), size);
    return {values, *kernels_.memory};
  }
  DeviceArray<float> optional_vector(const std::string& name, int64_t size) {
    return file_.find(name) == nullptr ? DeviceArray<float>() : vector(name, size);
  }
  /// A weight that nobody reads (a bias, an expert) means another computation than ours.
  void check_all_read() const {
    for (const GgufTensor& tensor : file_.tensors()) {
      if (!read_.contains(tensor.name) && tensor.name != kRopeFactorsTensor) {
        throw Error(ErrorKind::kModelFile,
                    fmt::format("{}: tensor {} is not supported", file_.path(), tensor.name));
      }
    }
  }

 private:
  const GgufTensor& required(const std::string& name) {
    const GgufTensor* tensor = file_.find(name);
    if (tensor == nullptr) {
      throw Error(ErrorKind::kModelFile,
                  fmt::format("{}: tensor {} is missing", file_.path(), name));
    }
    read_.insert(tensor->name);
    return *tensor;
  }
  [[noreturn]] void fail_shape(const GgufTensor& tensor, const std::string& expected) const {
    throw Error(ErrorKind::kModelFile,
                fmt::format("{}: tensor {} has shape [{}] instead of {}", file_.path(), tensor.name,
                            fmt::join(tensor.shape, ", "), expected));
  }

  const GgufFile& file_;
  const Kernels& kernels_;
  ActivationType activations_;
  ThreadPool& pool_;
  std::set<std::string_view> read_;
};

LayerWeights load_layer(Loader& load, const ModelConfig& c, int l) {
  const auto name = [l](const char* part) { return fmt::format("blk.{}.{}", l, part); };
  const int64_t q_width = int64_t{c.heads} * c.head_dim;
  const int64_t kv_width = int64_t{c.kv_heads} * c.head_dim;
  const bool has_head_norms = c.architecture == "qwen3" || c.architecture == "gemma3";
  const bool has_post_norms = c.architecture == "gemma3";
  LayerWeights w;
  w.attention_norm = load.vector(name("attn_norm.weight"), c.hidden);
  w.q = load.matrix(name("attn_q.weight"), q_width, c.hidden);
  w.k = load.matrix(name("attn_k.weight"), kv_width, c.hidden);
  w.v = load.matrix(name("attn_v.weight"), kv_width, c.hidden);
  w.q_bias = load.optional_vector(name("attn_q.bias"), q_width);
  w.k_bias = load.optional_vector(name("attn_k.bias"), kv_width);
  w.v_bias = load.optional_vector(name("attn_v.bias"), kv_width);
  if (has_head_norms) {
    w.q_norm = load.vector(name("attn_q_norm.weight"), c.head_dim);
    w.k_norm = load.vector(name("attn_k_norm.weight"), c.head_dim);
  }
  w.attention_output = load.matrix(name("attn_output.weight"), c.hidden, q_width);
  w.ffn_norm = load.vector(name("ffn_norm.weight"), c.hidden);
  w.gate = load.matrix(name("ffn_gate.weight"), c.ffn, c.hidden);
  w.up = load.matrix(name("ffn_up.weight"), c.ffn, c.hidden);
  w.down = load.matrix(name("ffn_down.weight"), c.hidden, c.ffn);
  if (has_post_norms) {
    w.post_attention_norm = load.vector(name("post_attention_norm.weight"), c.hidden);
    w.post_ffn_norm = load.vector(name("post_ffw_norm.weight"), c.hidden);
  }
  return w;
}

}  // namespace

Model::Model(GgufFile file, const Kernels& kernels, ActivationType activations, ThreadPool& pool,
             const Progress& progress)
    : file_(std::move(file)), config_(read_model_config(file_)) {
  if (kernels.head_dim_max > 0 && config_.head_dim > kernels.head_dim_max) {
    throw Error(ErrorKind::kModelFile,
                fmt::format("{}: heads of {} elements: the {} kernels take up to {}", file_.path(),
                            config_.head_dim, kernels.name, kernels.head_dim_max));
  }
  Loader load(file_, kernels, activations, pool);
  const int64_t steps = config_.layers + 1;
  embedding_ = load.raw_matrix("token_embd.weight", config_.vocab, config_.hidden);
  const bool has_output = file_.find("output.weight") != nullptr;
  if (has_output) {
    output_ = load.matrix("output.weight", config_.vocab, config_.hidden);
  }
  // The CPU reads rows of the embedding from the file: there it is packed to serve as the output.
  if (!has_output || !kernels.memory->is_host) {
    load.pack(embedding_);
  }
  output_norm_ = load.vector("output_norm.weight", config_.hidden);
  progress(1, steps);
  for (int l = 0; l < config_.layers; ++l) {
    layers_.push_back(load_layer(load, config_, l));
    progress(l + 2, steps);
  }
  load.check_all_read();
  kv_groups_ = make_kv_groups(config_.is_global, config_.window);
  places_.resize(static_cast<size_t>(config_.layers));
  for (size_t g = 0; g < kv_groups_.size(); ++g) {
    const std::vector<int>& layers = kv_groups_[g].layers;
    for (size_t i = 0; i < layers.size(); ++i) {
      places_[static_cast<size_t>(layers[i])] = {static_cast<int>(g), static_cast<int>(i)};
    }
  }
  fingerprint_ = weights_fingerprint(file_);
}

KvGeometry Model::kv_geometry(KvType type, int page_tokens) const {
  KvGeometry geometry;
  geometry.page = {type, type, page_tokens, config_.head_dim};
  geometry.kv_heads = config_.kv_heads;
  geometry.layers_per_block = static_cast<int>(kv_groups_.front().layers.size());
  return geometry;
}

}  // namespace pagezip
