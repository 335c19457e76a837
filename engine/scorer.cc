#include "engine/scorer.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "base/math.h"

namespace pagezip {

int64_t RepeatPrompts::rows_max(int64_t tokens, int64_t chunk, bool is_extension) const {
  const auto first_rows = static_cast<int64_t>(first.size());
  const int64_t overlap =
      is_extension ? kOverlap : std::min<int64_t>(kOverlap, std::min(chunk, tokens));
  const auto next_rows = static_cast<int64_t>(next.size()) + overlap;
  const int64_t prompt =
      tokens > chunk || is_extension ? std::max(first_rows, next_rows) : first_rows;
  return prompt + static_cast<int64_t>(postfix.size()) + std::min(tokens, chunk);
}

std::vector<ScoreChunk> make_score_chunks(std::span<const TokenId> context,
                                          const RepeatPrompts& prompts, int64_t chunk_tokens,
                                          std::span<const TokenId> before) {
  const auto tokens = static_cast<int64_t>(context.size());
  std::vector<ScoreChunk> chunks;
  for (int64_t begin = 0; begin < tokens; begin += chunk_tokens) {
    ScoreChunk& chunk = chunks.emplace_back();
    chunk.begin = begin;
    chunk.end = std::min(begin + chunk_tokens, tokens);
    const auto start = static_cast<size_t>(begin);
    const std::span<const TokenId> previous =
        begin == 0 ? before
                   : context.subspan(start - static_cast<size_t>(chunk_tokens),
                                     static_cast<size_t>(chunk_tokens));
    chunk.tokens = previous.empty() ? prompts.first : prompts.next;
    const auto append = [&](auto first, auto last) {
      chunk.tokens.insert(chunk.tokens.end(), first, last);
    };
    const auto overlap = std::min<size_t>(RepeatPrompts::kOverlap, previous.size());
    append(previous.end() - static_cast<int64_t>(overlap), previous.end());
    append(prompts.postfix.begin(), prompts.postfix.end());
    append(context.begin() + begin, context.begin() + chunk.end);
  }
  return chunks;
}

ScoreSlot::ScoreSlot(Transformer& transformer, ScoreFunction function, int64_t rows_max)
    : transformer_(transformer),
      function_(function),
      rows_max_(rows_max),
      last_layer_(transformer.model().kv_groups().front().layers.back()),
      rope_(*transformer.kernels().memory),
      best_(*transformer.kernels().memory) {
  const ModelConfig& c = transformer.model().config();
  const DeviceMemory& memory = *transformer.kernels().memory;
  const PageLayout& page = transformer.page();
  const int64_t blocks = ceil_div(rows_max, page.page_tokens);
  kv_ = AlignedBytes(static_cast<size_t>(blocks * c.kv_heads * page.page_bytes()), memory);
  ids_.resize(static_cast<size_t>(blocks));
  std::iota(ids_.begin(), ids_.end(), 0);
  hidden_ = {rows_max * c.hidden, memory};
  const auto page_units = static_cast<uint64_t>(page.page_bytes() / PageLayout::kUnit);
  segment_.base = kv_.data();
  segment_.ids = ids_.data();
  segment_.scale = page_units * static_cast<uint64_t>(c.kv_heads);
  segment_.head_stride = page_units;
  segment_.heads = c.kv_heads;
}

int64_t ScoreSlot::bytes() const {
  return static_cast<int64_t>(kv_.size() + ids_.size() * sizeof(uint32_t) +
                              static_cast<size_t>(hidden_.size() + best_.size()) * sizeof(float));
}

void ScoreSlot::start_chunk(const Document& full, const ScoreChunk& chunk) {
  const ModelConfig& c = transformer_.model().config();
  const auto rows = static_cast<int64_t>(chunk.tokens.size());
  CHECK(!full.compressed());
  CHECK_LE(rows, rows_max_);
  segment_.first_position = full.logical_length();
  segment_.uniform_length = rows;
  rope_.clear();
  rope_.append(c, full.logical_length(), rows);
  rope_.to_device();
  transformer_.embed(chunk.tokens, {hidden_.data(), rows, c.hidden});
}

void ScoreSlot::run_tile(const Document& full, const ScoreChunk& chunk, int layer,
                         int64_t first_row, int64_t rows, ScoreSet& scores) {
  if (layer == 0 && first_row == 0) {
    start_chunk(full, chunk);
  }
  CHECK_LE(first_row + rows, segment_.uniform_length);
  CHECK_LE(rows, transformer_.rows_max());
  const ModelConfig& c = transformer_.model().config();
  const LayerPlace place = transformer_.model().place(layer);
  const bool global = c.is_global[static_cast<size_t>(layer)];
  KvView view = full.view(place.group);
  // The slot holds one layer, whatever its number: its layer stride is 0.
  view.push(segment_);
  const AttentionSpan span{0,     rows,        full.logical_length() + first_row,
                           &view, place.layer, global ? 0 : c.window};
  LayerScoring scoring;
  scoring.range.prefix_end = full.root_prefix_length();
  scoring.range.segment = full.segments() - 1;
  scoring.range.chunk_begin = full.prefix_length() + chunk.begin;
  scoring.range.chunk_end = full.prefix_length() + chunk.end;
  scoring.subtract_lse = function_ == ScoreFunction::kProbability;
  scoring.stop_after_scores = layer == last_layer_;
  const int64_t tokens = chunk.end - chunk.begin;
  if (global) {
    best_.resize(c.kv_heads * tokens);
    scoring.best = {best_.device(), c.kv_heads, tokens};
    if (first_row == 0) {
      std::fill_n(best_.host(), best_.size(), -std::numeric_limits<float>::infinity());
      best_.to_device(0, best_.size());
    }
  }
  const MatrixView<float> hidden(hidden_.data() + first_row * c.hidden, rows, c.hidden);
  transformer_.layer(layer, hidden, {&span, 1}, rope_, first_row, global ? &scoring : nullptr);
  if (global && first_row + rows == segment_.uniform_length) {
    best_.to_host(0, best_.size());
    for (int head = 0; head < scores.heads; ++head) {
      std::copy_n(best_.host() + head * tokens, tokens,
                  scores.scores.data() +
                      (int64_t{place.layer} * scores.heads + head) * scores.tokens + chunk.begin);
    }
  }
}

ScoreJob::ScoreJob(Transformer& transformer, ScoreSlot& slot, std::shared_ptr<const Document> full,
                   std::span<const TokenId> context, const RepeatPrompts& prompts,
                   int64_t chunk_tokens)
    : transformer_(transformer),
      slot_(slot),
      full_(std::move(full)),
      chunks_(make_score_chunks(context, prompts, chunk_tokens)) {
  const ModelConfig& c = transformer.model().config();
  const auto tokens = static_cast<int64_t>(context.size());
  CHECK(!full_->compressed());
  CHECK_GT(full_->global_layers(), 0);
  CHECK_EQ(full_->logical_length(), full_->prefix_length() + tokens);
  CHECK_LE(full_->logical_length() + prompts.rows_max(tokens, chunk_tokens), c.context_max);
  scores_.layers = full_->global_layers();
  scores_.heads = c.kv_heads;
  scores_.tokens = tokens;
  scores_.scores.assign(static_cast<size_t>(scores_.pairs()),
                        -std::numeric_limits<float>::infinity());
  last_layer_ = transformer.model().kv_groups().front().layers.back();
}

void ScoreJob::run_chunk(int64_t chunk) {
  CHECK_LT(chunk_, 0);
  chunk_ = chunk;
  while (!run_tile()) {
  }
}

bool ScoreJob::step() {
  if (chunk_ < 0) {
    if (next_chunk_ == chunks()) {
      return false;
    }
    chunk_ = next_chunk_++;
  }
  run_tile();
  return true;
}

bool ScoreJob::run_tile() {
  const ScoreChunk& chunk = chunks_[static_cast<size_t>(chunk_)];
  const auto total = static_cast<int64_t>(chunk.tokens.size());
  const int64_t rows = std::min({kTileRows, transformer_.rows_max(), total - row_});
  slot_.run_tile(*full_, chunk, layer_, row_, rows, scores_);
  row_ += rows;
  if (row_ < total) {
    return false;
  }
  row_ = 0;
  const int64_t tokens = chunk.end - chunk.begin;
  tokens_done_ += tokens * (layer_ + 1) / (last_layer_ + 1) - tokens * layer_ / (last_layer_ + 1);
  if (layer_++ < last_layer_) {
    return false;
  }
  layer_ = 0;
  chunk_ = -1;
  return true;
}

}  // namespace pagezip
