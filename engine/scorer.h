// KVzip scores by context reconstruction: how much each KV pair of a document is needed to repeat
// it.
//
// Kim et al. 2025, "KVzip: Query-Agnostic KV Cache Compression with Context Reconstruction", §3,
// with the key set and prompts of the released code. The document is cut into chunks of m tokens.
// For each chunk the model reads "repeat the previous context" and the chunk's own text, at the
// positions behind the document, attending to the whole full cache. The score of a pair is the
// largest attention probability that any of these rows gives it, softmax taken over {system prefix,
// this chunk, the rows so far}; here as its natural logarithm, in float32.
//
// Work is layer-major: one layer for all rows of a chunk, in tiles of rows, then the next. So only
// the residual stream and one layer's own K/V live (ScoreSlot), no pool blocks are taken, and no
// [rows, keys] matrix exists. Chunks are independent of each other, and any order of work gives the
// same bits.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/transformer.h"
#include "paging/document.h"
#include "paging/selection.h"
#include "scheduler/request.h"

namespace pagezip {

/// Token ids around a chunk's own text in its repeat prompt.
struct RepeatPrompts {
  static constexpr int kOverlap = 8;  // last tokens of the previous chunk, to say where to start

  std::vector<TokenId> first;    // "\n\nRepeat the previous context exactly."
  std::vector<TokenId> next;     // "\n\nRepeat the part ... starting with ", then the overlap
  std::vector<TokenId> postfix;  // from the end of the user's text to the assistant's

  /// Rows of the longest repeat prompt of a document of `tokens` tokens in chunks of `chunk`, at
  /// most. `is_extension`: text stands before it.
  int64_t rows_max(int64_t tokens, int64_t chunk, bool is_extension = false) const;
};

/// Of the scores and of the repeat prompts: part of what a document is, so that old files don't
/// pass for new ones. Grows when either changes.
inline constexpr uint32_t kScorerVersion = 1;

enum class ScoreFunction : uint8_t {
  kProbability,  // KVzip
  kLogit,        // the softmax-free variant: the largest scaled q·k
};

/// The chunks of a document's own tokens, each with its repeat prompt. `before`: the tokens, or at
/// least the last kOverlap, of the text that the document extends; empty if there is none.
std::vector<ScoreChunk> make_score_chunks(std::span<const TokenId> context,
                                          const RepeatPrompts& prompts, int64_t chunk_tokens,
                                          std::span<const TokenId> before = {});

/// Memory of one chunk being scored, and the work on it: allocated once, reused by any number of
/// chunks, one after the other. Engine thread only.
class ScoreSlot {
 public:
  ScoreSlot(Transformer& transformer, ScoreFunction function, int64_t rows_max);
  int64_t rows_max() const { return rows_max_; }
  int64_t bytes() const;

  /// Runs rows [first_row, first_row + rows) of one layer of a chunk's repeat prompt; the last of
  /// them put the layer's part into `scores`. Row 0 of layer 0 starts a chunk; then come its other
  /// rows, and layer by layer the same up to the last global one. REQUIRES: this order; `full` is
  /// not compressed; the prompt has at most rows_max() rows.
  void run_tile(const Document& full, const ScoreChunk& chunk, int layer, int64_t first_row,
                int64_t rows, ScoreSet& scores);

 private:
  void start_chunk(const Document& full, const ScoreChunk& chunk);

  Transformer& transformer_;
  ScoreFunction function_;
  int64_t rows_max_;
  int last_layer_;             // the last global one; nothing behind it matters
  AlignedBytes kv_;            // K/V of one layer, pages in order
  std::vector<uint32_t> ids_;  // 0, 1, 2, ...
  Segment segment_;
  DeviceArray<float> hidden_;  // [rows_max, hidden], the residual stream
  RopeTables rope_;            // of the chunk's rows
  MirroredArray<float> best_;  // [kv_heads, chunk]: of the layer in hand
};

/// One document being scored, tile by tile. Engine thread only.
class ScoreJob {
 public:
  /// Tiles of one layer have this many rows: some milliseconds of work.
  static constexpr int64_t kTileRows = 256;

  /// `context`: the document's own tokens, behind its prefix. REQUIRES: `full` is not compressed
  /// and has a global group, the slot holds the longest repeat prompt, and all positions lie within
  /// the model's limit. Borrows transformer and slot.
  ScoreJob(Transformer& transformer, ScoreSlot& slot, std::shared_ptr<const Document> full,
           std::span<const TokenId> context, const RepeatPrompts& prompts, int64_t chunk_tokens);

  int64_t chunks() const { return static_cast<int64_t>(chunks_.size()); }
  /// Scores one chunk from start to end; chunks may be done in any order.
  void run_chunk(int64_t chunk);
  /// One tile of one layer, chunks in order. False when nothing is left.
  bool step();
  int64_t tokens_done() const { return tokens_done_; }  // of the context, about

  /// The scores, when all chunks are done. Leaves the job empty.
  ScoreSet take() { return std::move(scores_); }

 private:
  // One tile of the current layer; true when it was the chunk's last.
  bool run_tile();

  Transformer& transformer_;
  ScoreSlot& slot_;
  std::shared_ptr<const Document> full_;
  std::vector<ScoreChunk> chunks_;
  ScoreSet scores_;
  int last_layer_ = 0;

  int64_t chunk_ = -1;  // in hand, or -1
  int64_t next_chunk_ = 0;
  int64_t tokens_done_ = 0;
  int layer_ = 0;
  int64_t row_ = 0;  // the next tile's first
};

}  // namespace pagezip
