#include "engine/scorer.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "base/math.h"

namespace pagezip {

int64_t RepeatPrompts::rows_max(int64_t tokens, int64_t chunk) const {
  const auto first_rows = static_cast<int64_t>(first.size());
  const auto next_rows =
      static_cast<int64_t>(next.size()) + std::min<int64_t>(kOverlap, std::min(chunk, tokens));
  const int64_t prompt = tokens > chunk ? std::max(first_rows, next_rows) : first_rows;
  return prompt + static_cast<int64_t>(postfix.size()) + std::min(tokens, chunk);
}

ScoreSlot::ScoreSlot(const Transformer& transformer, int64_t rows_max) : rows_max_(rows_max) {
  const ModelConfig& c = transformer.model().config();
  const PageLayout& page = transformer.page();
  const int64_t blocks = ceil_div(rows_max, page.page_tokens);
  kv_ = AlignedBytes(static_cast<size_t>(blocks * c.kv_heads * page.page_bytes()));
  ids_.resize(static_cast<size_t>(blocks));
  std::iota(ids_.begin(), ids_.end(), 0);
  hidden_.resize(static_cast<size_t>(rows_max * c.hidden));
  const auto page_units = static_cast<uint64_t>(page.page_bytes() / PageLayout::kUnit);
  segment_.base = kv_.data();
  segment_.ids = ids_.data();
  segment_.scale = page_units * static_cast<uint64_t>(c.kv_heads);
  segment_.head_stride = page_units;
  segment_.heads = c.kv_heads;
}

int64_t ScoreSlot::bytes() const {
  return static_cast<int64_t>(kv_.size() + ids_.size() * sizeof(uint32_t) +
                              hidden_.size() * sizeof(float));
}

ScoreJob::ScoreJob(Transformer& transformer, ScoreSlot& slot, std::shared_ptr<const Document> full,
                   std::span<const TokenId> context, const RepeatPrompts& prompts,
                   int64_t chunk_tokens, ScoreFunction function)
    : transformer_(transformer),
      slot_(slot),
      full_(std::move(full)),
      context_(context),
      prompts_(prompts),
      chunk_tokens_(chunk_tokens),
      function_(function) {
  const ModelConfig& c = transformer.model().config();
  const auto tokens = static_cast<int64_t>(context.size());
  CHECK(!full_->compressed());
  CHECK_GT(full_->global_layers(), 0);
  CHECK_EQ(full_->logical_length(), full_->prefix_length() + tokens);
  CHECK_LE(prompts.rows_max(tokens, chunk_tokens), slot.rows_max());
  CHECK_LE(full_->logical_length() + prompts.rows_max(tokens, chunk_tokens), c.context_max);
  scores_.layers = full_->global_layers();
  scores_.heads = c.kv_heads;
  scores_.tokens = tokens;
  scores_.scores.assign(static_cast<size_t>(scores_.pairs()),
                        -std::numeric_limits<float>::infinity());
  last_layer_ = transformer.model().kv_groups().front().layers.back();
}

int64_t ScoreJob::chunks() const { return ceil_div(scores_.tokens, chunk_tokens_); }

void ScoreJob::run_chunk(int64_t chunk) {
  CHECK_LT(chunk_, 0);
  start_chunk(chunk);
  while (!run_tile()) {
  }
}

bool ScoreJob::step() {
  if (chunk_ < 0) {
    if (next_chunk_ == chunks()) {
      return false;
    }
    start_chunk(next_chunk_++);
  }
  run_tile();
  return true;
}

void ScoreJob::start_chunk(int64_t chunk) {
  const int64_t begin = chunk * chunk_tokens_;
  const int64_t end = std::min(begin + chunk_tokens_, scores_.tokens);
  std::vector<TokenId> ids = chunk == 0 ? prompts_.first : prompts_.next;
  if (chunk > 0) {
    const int64_t overlap = std::min<int64_t>(RepeatPrompts::kOverlap, chunk_tokens_);
    ids.insert(ids.end(), context_.begin() + begin - overlap, context_.begin() + begin);
  }
  ids.insert(ids.end(), prompts_.postfix.begin(), prompts_.postfix.end());
  ids.insert(ids.end(), context_.begin() + begin, context_.begin() + end);

  const ModelConfig& c = transformer_.model().config();
  chunk_ = chunk;
  rows_ = static_cast<int64_t>(ids.size());
  layer_ = 0;
  row_ = 0;
  slot_.segment_.first_position = full_->logical_length();
  slot_.segment_.uniform_length = rows_;
  rope_.clear();
  rope_.append(c, full_->logical_length(), rows_);
  transformer_.embed(ids, {slot_.hidden_.data(), rows_, c.hidden});
}

bool ScoreJob::run_tile() {
  const ModelConfig& c = transformer_.model().config();
  const LayerPlace place = transformer_.model().place(layer_);
  const bool global = c.is_global[static_cast<size_t>(layer_)];
  const int64_t rows = std::min({kTileRows, transformer_.rows_max(), rows_ - row_});
  KvView view = full_->view(place.group);
  // The slot holds one layer, whatever its number: its layer stride is 0.
  view.push(slot_.segment_);
  const AttentionSpan span{0,     rows,        full_->logical_length() + row_,
                           &view, place.layer, global ? 0 : c.window};
  const MatrixView<float> hidden(slot_.hidden_.data() + row_ * c.hidden, rows, c.hidden);

  const int64_t begin = chunk_ * chunk_tokens_;
  const int64_t end = std::min(begin + chunk_tokens_, scores_.tokens);
  const int64_t prefix = full_->prefix_length();
  LayerScoring scoring;
  scoring.range.prefix_end = prefix;
  scoring.range.chunk_begin = prefix + begin;
  scoring.range.chunk_end = prefix + end;
  scoring.subtract_lse = function_ == ScoreFunction::kProbability;
  scoring.stop_after_scores = layer_ == last_layer_;
  if (global) {
    scoring.best = {
        scores_.scores.data() + int64_t{place.layer} * scores_.heads * scores_.tokens + begin,
        scores_.heads, end - begin, scores_.tokens};
  }
  transformer_.layer(layer_, hidden, {&span, 1}, rope_, row_, global ? &scoring : nullptr);

  row_ += rows;
  if (row_ < rows_) {
    return false;
  }
  row_ = 0;
  tokens_done_ +=
      (end - begin) * (layer_ + 1) / (last_layer_ + 1) - (end - begin) * layer_ / (last_layer_ + 1);
  if (layer_++ < last_layer_) {
    return false;
  }
  chunk_ = -1;
  return true;
}

}  // namespace pagezip
