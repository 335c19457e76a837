// A model as plain data: what the file says about its shape, and its weights ready for a backend.
//
// Architectures: llama, qwen2, qwen3, gemma3. Loading checks every tensor's name, type and shape.
// Immutable after load; any thread may read.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/gguf.h"
#include "kernels/kernels.h"
#include "paging/block_table.h"

namespace pagezip {

/// Frequencies of one kind of RoPE: angle of pair i at position p = p * inverse_frequency[i].
struct RopeConfig {
  std::vector<double> inverse_frequency;  // [head_dim / 2]
};

struct ModelConfig {
  std::string architecture;
  int layers = 0;
  int hidden = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int ffn = 0;
  int vocab = 0;
  int context_max = 0;  // positions the model was made for
  float norm_eps = 0;
  float embedding_scale = 1;
  float attention_scale = 0;
  RopeStyle rope_style = RopeStyle::kHalfSplit;
  GateFunction gate = GateFunction::kSilu;
  int window = 0;               // positions a sliding layer sees; 0: no sliding layers
  std::vector<bool> is_global;  // [layers]
  RopeConfig rope_global;
  RopeConfig rope_local;  // of the sliding layers
};

/// One transformer layer. Arrays that the architecture lacks are empty.
struct LayerWeights {
  DeviceArray<float> attention_norm;  // [hidden]
  Weight q, k, v;                     // [heads or kv_heads * head_dim, hidden]
  DeviceArray<float> q_bias, k_bias, v_bias;
  DeviceArray<float> q_norm, k_norm;       // [head_dim], before RoPE
  Weight attention_output;                 // [hidden, heads * head_dim]
  DeviceArray<float> post_attention_norm;  // [hidden]
  DeviceArray<float> ffn_norm;             // [hidden]
  Weight gate, up;                         // [ffn, hidden]
  Weight down;                             // [hidden, ffn]
  DeviceArray<float> post_ffn_norm;        // [hidden]
};

/// Where a layer's KV lies: KV group and layer number within it.
struct LayerPlace {
  int group = 0;
  int layer = 0;
};

class Model {
 public:
  using Progress = std::function<void(int64_t done, int64_t total)>;  // layers

  /// Reads and packs all weights of an opened file. Throws Error(kModelFile) for what is missing,
  /// misshapen or unsupported. `kernels` and `activations` are those that will run it.
  Model(GgufFile file, const Kernels& kernels, ActivationType activations, ThreadPool& pool,
        const Progress& progress);

  const GgufFile& file() const { return file_; }
  const ModelConfig& config() const { return config_; }
  const LayerWeights& layer(int l) const { return layers_[static_cast<size_t>(l)]; }
  const Weight& embedding() const { return embedding_; }  // [vocab, hidden]
  /// [vocab, hidden]; the embedding itself where the model ties them.
  const Weight& output() const { return output_.rows > 0 ? output_ : embedding_; }
  const DeviceArray<float>& output_norm() const { return output_norm_; }

  const std::vector<KvGroup>& kv_groups() const { return kv_groups_; }
  LayerPlace place(int l) const { return places_[static_cast<size_t>(l)]; }
  /// Geometry of the blocks that hold this model's KV.
  KvGeometry kv_geometry(KvType type, int page_tokens) const;
  /// Identifies the weights: XXH3 of the file's metadata shape and a sample of every tensor.
  uint64_t fingerprint() const { return fingerprint_; }

 private:
  GgufFile file_;
  ModelConfig config_;
  std::vector<LayerWeights> layers_;
  Weight embedding_;
  Weight output_;
  DeviceArray<float> output_norm_;
  std::vector<KvGroup> kv_groups_;
  std::vector<LayerPlace> places_;
  uint64_t fingerprint_ = 0;
};

/// The shape of the model in a file, checked. Throws Error(kModelFile).
ModelConfig read_model_config(const GgufFile& file);

/// Model::fingerprint() without the model.
uint64_t weights_fingerprint(const GgufFile& file);

}  // namespace pagezip
