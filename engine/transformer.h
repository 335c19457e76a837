// Runs tokens through a model: spans of rows and KV views in, hidden states and logits out.
//
// A batch is a list of spans, each some consecutive tokens of one sequence. Every span writes the
// keys and values of its rows into the last segment of its views, and attends to all segments. Most
// callers use forward(); scoring (engine/scorer.h) works layer by layer on tiles of rows.
//
// One thread drives a Transformer (it owns the buffers of a batch); kernels use the pool's threads.
#pragma once

#include <span>
#include <vector>

#include "base/ids.h"
#include "engine/model.h"
#include "kernels/kernels.h"

namespace pagezip {

/// Consecutive tokens of one sequence, the first at logical position `first_position`.
struct RowSpan {
  std::span<const TokenId> tokens;
  int64_t first_position = 0;
  /// [KV groups of the model]. The last segment of each has room for these rows (its length counts
  /// them already) and is written.
  std::span<const KvView> views;
  bool logits = true;  // of the last token
};

/// cos and sin of a batch's positions, for global and for sliding layers: [rows, head_dim / 2].
class RopeTables {
 public:
  explicit RopeTables(const DeviceMemory& memory)
      : values_{{MirroredArray<float>(memory), MirroredArray<float>(memory)},
                {MirroredArray<float>(memory), MirroredArray<float>(memory)}} {}
  /// Starts an empty table.
  void clear() { rows_ = 0; }
  /// Appends rows for positions [first_position, first_position + rows).
  void append(const ModelConfig& config, int64_t first_position, int64_t rows);
  /// Brings what was appended to the device. REQUIRES: called before cos() and sin().
  void to_device();
  int64_t rows() const { return rows_; }
  MatrixView<const float> cos(bool global, int64_t first_row, int64_t rows) const;
  MatrixView<const float> sin(bool global, int64_t first_row, int64_t rows) const;

 private:
  int64_t rows_ = 0;
  int64_t half_ = 0;
  MirroredArray<float> values_[2][2];  // [global][cos, sin], [rows, half]
};

/// What a layer does beside its ordinary work when a chunk of a document is being scored.
struct LayerScoring {
  ScoreRange range;                // lse is set by the transformer
  MatrixView<float> best;          // [kv_heads, chunk]: running maxima of the log scores
  bool subtract_lse = true;        // false: the softmax-free variant
  bool stop_after_scores = false;  // nobody reads this layer's output
};

class Transformer {
 public:
  /// Batches have at most `rows_max` rows.
  Transformer(const Model& model, const Kernels& kernels, ActivationType activations,
              const PageLayout& page, int64_t rows_max, ThreadPool& pool);

  const Model& model() const { return model_; }
  const Kernels& kernels() const { return kernels_; }
  const PageLayout& page() const { return page_; }
  ThreadPool& pool() const { return pool_; }
  int64_t rows_max() const { return rows_max_; }

  /// Runs a batch. logits: [spans that want them, vocab] in the backend's memory; data == null:
  /// none for all. REQUIRES: every span has tokens, at most rows_max in all, all ids below the
  /// vocabulary.
  void forward(std::span<const RowSpan> spans, MatrixView<float> logits);

  /// The steps of forward(), for callers that go layer by layer. hidden: [rows, hidden].
  void embed(std::span<const TokenId> tokens, MatrixView<float> hidden);
  /// hidden = layer l of hidden. `spans` name rows of `hidden`; their views and layers are those of
  /// the layer's KV group. rope: one row for each row of hidden. scoring: null or with one span.
  void layer(int l, MatrixView<float> hidden, std::span<const AttentionSpan> spans,
             const RopeTables& rope, int64_t rope_row, LayerScoring* scoring);
  /// logits [rows, vocab] of hidden rows.
  void logits(MatrixView<const float> hidden, MatrixView<float> out);
  /// Rows of the batch that forward() ran last, for logits() of others than the spans' last ones.
  MatrixView<const float> hidden(int64_t first_row, int64_t rows) const;

 private:
  // Views of the buffers with as many rows as the batch has.
  MatrixView<float> rows_of(const DeviceArray<float>& buffer, int64_t rows, int64_t cols) const;
  void attention(int l, int64_t rows, std::span<const AttentionSpan> spans, const RopeTables& rope,
                 int64_t rope_row, LayerScoring* scoring);
  void feed_forward(const LayerWeights& w, MatrixView<float> hidden);
  void normed(MatrixView<const float> hidden, const DeviceArray<float>& weight);
  void matmul(std::span<const MatmulTarget> targets);

  const Model& model_;
  const Kernels& kernels_;
  ActivationType activations_;
  PageLayout page_;
  int64_t rows_max_;
  ThreadPool& pool_;
  Activations input_;  // of the matmuls in hand

  // [rows_max, ...]
  DeviceArray<float> hidden_, norm_, q_, k_, v_, attended_, projected_, gate_, up_, lse_;
  DeviceArray<float> last_rows_;  // [spans, hidden]
  RopeTables rope_;
  std::vector<AttentionSpan> attention_spans_;  // of forward()
};

}  // namespace pagezip
