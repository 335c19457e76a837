#include "engine/transformer.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace pagezip {

void RopeTables::append(const ModelConfig& config, int64_t first_position, int64_t rows) {
  half_ = config.head_dim / 2;
  for (int global = 0; global < 2; ++global) {
    const RopeConfig& rope = global == 1 ? config.rope_global : config.rope_local;
    if (rope.inverse_frequency.empty()) {
      continue;  // a model without sliding layers
    }
    for (auto& values : values_[global]) {
      values.resize((rows_ + rows) * half_);
    }
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < half_; ++i) {
        // Rounded to float32 before cos and sin, as the models' own code does.
        const auto angle = static_cast<float>(static_cast<double>(first_position + r) *
                                              rope.inverse_frequency[static_cast<size_t>(i)]);
        const auto at = static_cast<size_t>((rows_ + r) * half_ + i);
        values_[global][0].host()[at] = std::cos(angle);
        values_[global][1].host()[at] = std::sin(angle);
      }
    }
  }
  rows_ += rows;
}

void RopeTables::to_device() {
  for (auto& kind : values_) {
    for (auto& values : kind) {
      values.to_device(0, values.size());
    }
  }
}

MatrixView<const float> RopeTables::cos(bool global, int64_t first_row, int64_t rows) const {
  return {values_[global ? 1 : 0][0].device() + first_row * half_, rows, half_};
}

MatrixView<const float> RopeTables::sin(bool global, int64_t first_row, int64_t rows) const {
  return {values_[global ? 1 : 0][1].device() + first_row * half_, rows, half_};
}

Transformer::Transformer(const Model& model, const Kernels& kernels, ActivationType activations,
                         const PageLayout& page, int64_t rows_max, ThreadPool& pool)
    : model_(model),
      kernels_(kernels),
      activations_(activations),
      page_(page),
      rows_max_(rows_max),
      pool_(pool),
      rope_(*kernels.memory) {
  const ModelConfig& c = model.config();
  const auto allocate = [&](DeviceArray<float>& buffer, int64_t cols) {
    buffer = {rows_max * cols, *kernels.memory};
  };
  const int64_t q_width = int64_t{c.heads} * c.head_dim;
  const int64_t kv_width = int64_t{c.kv_heads} * c.head_dim;
  allocate(hidden_, c.hidden);
  allocate(norm_, c.hidden);
  allocate(q_, q_width);
  allocate(k_, kv_width);
  allocate(v_, kv_width);
  allocate(attended_, q_width);
  allocate(projected_, c.hidden);
  allocate(gate_, c.ffn);
  allocate(up_, c.ffn);
  allocate(lse_, c.heads);
  allocate(last_rows_, c.hidden);
}

MatrixView<float> Transformer::rows_of(const DeviceArray<float>& buffer, int64_t rows,
                                       int64_t cols) const {
  CHECK_LE(rows, rows_max_);
  return {buffer.data(), rows, cols};
}

void Transformer::forward(std::span<const RowSpan> spans, MatrixView<float> logits_out) {
  const ModelConfig& c = model_.config();
  int64_t rows = 0;
  rope_.clear();
  attention_spans_.clear();
  for (const RowSpan& span : spans) {
    const auto count = static_cast<int64_t>(span.tokens.size());
    CHECK_GT(count, 0);
    CHECK_LE(rows + count, rows_max_);
    embed(span.tokens, {hidden_.data() + rows * c.hidden, count, c.hidden});
    rope_.append(c, span.first_position, count);
    attention_spans_.push_back({rows, count, span.first_position, nullptr, 0, 0});
    rows += count;
  }
  rope_.to_device();
  const MatrixView<float> hidden = rows_of(hidden_, rows, c.hidden);
  for (int l = 0; l < c.layers; ++l) {
    const LayerPlace place = model_.place(l);
    for (size_t i = 0; i < spans.size(); ++i) {
      attention_spans_[i].view = &spans[i].views[static_cast<size_t>(place.group)];
      attention_spans_[i].layer = place.layer;
      attention_spans_[i].window = c.is_global[static_cast<size_t>(l)] ? 0 : c.window;
    }
    layer(l, hidden, attention_spans_, rope_, 0, nullptr);
  }
  if (logits_out.data == nullptr) {
    return;
  }
  int64_t count = 0;
  for (size_t i = 0; i < spans.size(); ++i) {
    if (spans[i].logits) {
      const AttentionSpan& span = attention_spans_[i];
      kernels_.memory->copy(
          reinterpret_cast<std::byte*>(last_rows_.data() + count++ * c.hidden),
          reinterpret_cast<const std::byte*>(hidden.row(span.first_row + span.rows - 1)),
          static_cast<size_t>(c.hidden) * sizeof(float));
    }
  }
  if (count > 0) {
    logits(rows_of(last_rows_, count, c.hidden), logits_out);
  }
}

MatrixView<const float> Transformer::hidden(int64_t first_row, int64_t rows) const {
  CHECK_LE(first_row + rows, rows_max_);
  const int64_t width = model_.config().hidden;
  return {hidden_.data() + first_row * width, rows, width};
}

void Transformer::embed(std::span<const TokenId> tokens, MatrixView<float> hidden) {
  const ModelConfig& c = model_.config();
  for (const TokenId token : tokens) {
    CHECK_GE(token, 0);
    CHECK_LT(token, c.vocab);
  }
  kernels_.embed(model_.embedding(), tokens, c.embedding_scale, hidden);
}

void Transformer::layer(int l, MatrixView<float> hidden, std::span<const AttentionSpan> spans,
                        const RopeTables& rope, int64_t rope_row, LayerScoring* scoring) {
  const LayerWeights& w = model_.layer(l);
  const ModelConfig& c = model_.config();
  normed(hidden, w.attention_norm);
  attention(l, hidden.rows, spans, rope, rope_row, scoring);
  if (scoring != nullptr && scoring->stop_after_scores) {
    return;
  }
  const MatrixView<float> attended = rows_of(attended_, hidden.rows, int64_t{c.heads} * c.head_dim);
  const MatrixView<float> projected = rows_of(projected_, hidden.rows, c.hidden);
  kernels_.prepare(attended, activations_, input_, pool_);
  const MatmulTarget target{&w.attention_output, nullptr, projected};
  matmul({&target, 1});
  if (!w.post_attention_norm.empty()) {
    kernels_.rms_norm(projected, w.post_attention_norm.data(), c.norm_eps, projected, pool_);
  }
  kernels_.add(hidden, projected, pool_);
  feed_forward(w, hidden);
}

void Transformer::attention(int l, int64_t rows, std::span<const AttentionSpan> spans,
                            const RopeTables& rope, int64_t rope_row, LayerScoring* scoring) {
  const LayerWeights& w = model_.layer(l);
  const ModelConfig& c = model_.config();
  const MatrixView<float> q = rows_of(q_, rows, int64_t{c.heads} * c.head_dim);
  const MatrixView<float> k = rows_of(k_, rows, int64_t{c.kv_heads} * c.head_dim);
  const MatrixView<float> v = rows_of(v_, rows, int64_t{c.kv_heads} * c.head_dim);
  const MatmulTarget targets[] = {
      {&w.q, w.q_bias.data(), q}, {&w.k, w.k_bias.data(), k}, {&w.v, w.v_bias.data(), v}};
  matmul(targets);
  if (!w.q_norm.empty()) {
    const MatrixView<float> q_heads(q.data, rows * c.heads, c.head_dim);
    const MatrixView<float> k_heads(k.data, rows * c.kv_heads, c.head_dim);
    kernels_.rms_norm(q_heads, w.q_norm.data(), c.norm_eps, q_heads, pool_);
    kernels_.rms_norm(k_heads, w.k_norm.data(), c.norm_eps, k_heads, pool_);
  }
  const bool global = c.is_global[static_cast<size_t>(l)];
  const auto cos = rope.cos(global, rope_row, rows);
  const auto sin = rope.sin(global, rope_row, rows);
  kernels_.rope(q, c.head_dim, c.rope_style, cos, sin, pool_);
  kernels_.rope(k, c.head_dim, c.rope_style, cos, sin, pool_);
  kernels_.store_kv({page_, c.kv_heads, k, v, spans}, pool_);
  AttendArgs args{
      page_, c.heads, c.kv_heads, c.attention_scale, q, rows_of(attended_, rows, q.cols),
      spans, nullptr};
  if (scoring == nullptr) {
    kernels_.attend(args, pool_);
    return;
  }
  const MatrixView<float> lse = rows_of(lse_, rows, c.heads);
  scoring->range.lse = lse;
  args.score = &scoring->range;
  if (scoring->stop_after_scores) {
    args.out.data = nullptr;
  }
  if (scoring->subtract_lse || !scoring->stop_after_scores) {
    kernels_.attend(args, pool_);
  }
  kernels_.score({page_, c.heads, c.kv_heads, c.attention_scale, q,
                  scoring->subtract_lse ? MatrixView<const float>(lse) : MatrixView<const float>(),
                  &spans[0].view->segments[scoring->range.segment], spans[0].layer,
                  scoring->range.chunk_begin, scoring->range.chunk_end, scoring->best},
                 pool_);
}

void Transformer::feed_forward(const LayerWeights& w, MatrixView<float> hidden) {
  const ModelConfig& c = model_.config();
  const MatrixView<float> gate = rows_of(gate_, hidden.rows, c.ffn);
  const MatrixView<float> up = rows_of(up_, hidden.rows, c.ffn);
  const MatrixView<float> projected = rows_of(projected_, hidden.rows, c.hidden);
  normed(hidden, w.ffn_norm);
  const MatmulTarget wide[] = {{&w.gate, nullptr, gate}, {&w.up, nullptr, up}};
  matmul(wide);
  kernels_.gate(c.gate, gate, up, pool_);
  kernels_.prepare(gate, activations_, input_, pool_);
  const MatmulTarget narrow{&w.down, nullptr, projected};
  matmul({&narrow, 1});
  if (!w.post_ffn_norm.empty()) {
    kernels_.rms_norm(projected, w.post_ffn_norm.data(), c.norm_eps, projected, pool_);
  }
  kernels_.add(hidden, projected, pool_);
}

void Transformer::logits(MatrixView<const float> hidden, MatrixView<float> out) {
  normed(hidden, model_.output_norm());
  const MatmulTarget target{&model_.output(), nullptr, out};
  matmul({&target, 1});
}

void Transformer::normed(MatrixView<const float> hidden, const DeviceArray<float>& weight) {
  const MatrixView<float> norm = rows_of(norm_, hidden.rows, hidden.cols);
  kernels_.rms_norm(hidden, weight.data(), model_.config().norm_eps, norm, pool_);
  kernels_.prepare(norm, activations_, input_, pool_);
}

void Transformer::matmul(std::span<const MatmulTarget> targets) {
  kernels_.matmul(input_, activations_, targets, pool_);
}

}  // namespace pagezip
