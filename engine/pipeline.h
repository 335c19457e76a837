// One document at a time, from tokens to answers: prefill, score, select, compact, ask.
//
//   full    = prefill(prefix, context)      every KV pair, in uniform blocks
//   scores  = score(full, context)          how much each pair matters (engine/scorer.h)
//   kept    = select(scores, selection)     the best keep_ratio of them (paging/selection.h)
//   doc     = compact(full, kept)           only those, in pages of their own
//   Question(pipeline, doc).prompt(ids) ... any number of questions, on either version
//
// Engine thread only. Errors are Error (base/error.h); the pipeline stays usable after one.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/sampler.h"
#include "engine/scorer.h"
#include "engine/tokenizer.h"
#include "engine/transformer.h"
#include "paging/block_pool.h"
#include "paging/document.h"
#include "paging/selection.h"

namespace pagezip {

/// Thrown when the progress callback asks to stop.
class Cancelled : public std::exception {
 public:
  const char* what() const noexcept override { return "cancelled"; }
};

enum class Stage : uint8_t { kPrefill, kScore, kSelect, kCompact };
/// Called between slices of work, with tokens done so far. False: stop (throws Cancelled).
using PipelineProgress = std::function<bool(Stage stage, int64_t done, int64_t total)>;

struct PipelineOptions {
  KvType kv_type = KvType::kF16;
  int page_tokens = 16;
  int64_t prefill_rows = 512;   // rows of a prefill step
  int64_t chunk_tokens = 2048;  // of a scoring chunk
  ScoreFunction score_function = ScoreFunction::kProbability;
  std::optional<int64_t> context_max;  // positions; the model's own limit if not set
};

enum class Selector : uint8_t { kGlobal, kUniform };

struct SelectionOptions {
  double keep_ratio = 0.3;  // of the document's own pairs
  Selector selector = Selector::kGlobal;
  int64_t min_per_head = 0;
};

class Pipeline {
 public:
  /// `kernels` and `activations` as given to the model. Takes `pool_blocks` blocks at once (the
  /// system commits memory at first use).
  Pipeline(const Model& model, const Kernels& kernels, ActivationType activations,
           ThreadPool& threads, const PipelineOptions& options, int64_t pool_blocks);

  const Model& model() const { return model_; }
  Transformer& transformer() { return transformer_; }
  BlockPool& pool() { return pool_; }
  int64_t context_max() const { return context_max_; }

  /// Blocks that a document job takes at its peak, and that a question of `tokens` tokens, answer
  /// included, takes beside its document.
  static int64_t blocks_for_document(const Model& model, const PipelineOptions& options,
                                     int64_t tokens, double keep_ratio);
  static int64_t blocks_for_question(const Model& model, const PipelineOptions& options,
                                     int64_t tokens);

  /// Throws Error(kUsage) for a document that has no tokens, or that the model's limit does not
  /// hold together with its longest repeat prompt; costs nothing. `prompts` null: no scoring.
  void check_fits(int64_t prefix_tokens, int64_t context_tokens,
                  const RepeatPrompts* prompts) const;

  /// Throws Error(kOutOfMemory) if the pool has too few blocks.
  std::shared_ptr<const Document> prefill(std::span<const TokenId> prefix,
                                          std::span<const TokenId> context,
                                          const PipelineProgress& progress);
  /// Throws Error(kUsage) for a model without a global layer, which has nothing to compress.
  ScoreSet score(const std::shared_ptr<const Document>& full, std::span<const TokenId> context,
                 const RepeatPrompts& prompts, const PipelineProgress& progress);
  /// Throws Error(kRuntime) for scores that are not numbers: the full version stays as it is.
  static KeptSets select(const ScoreSet& scores, const SelectionOptions& options);
  /// Throws Error(kOutOfMemory) if the pool has too few blocks.
  std::shared_ptr<const Document> compact(const std::shared_ptr<const Document>& full,
                                          KeptSets kept, const PipelineProgress& progress);

  /// Logits after the last token that prefill() or a question ran.
  std::span<const float> prefill_logits() {
    return {logits_.host(), static_cast<size_t>(logits_.size())};
  }
  /// Bytes that the last score() took beside the full KV.
  int64_t score_bytes() const { return score_bytes_; }

 private:
  friend class Question;
  BlockReservation reserve(int64_t blocks, const char* what);
  // Runs `tokens` as the next rows of `sequence`, in steps; logits of the last token.
  void run(Sequence& sequence, const Document* document, std::span<const TokenId> tokens,
           BlockReservation& blocks, const std::function<void(int64_t done)>& progress);

  const Model& model_;
  PipelineOptions options_;
  int64_t context_max_;
  Transformer transformer_;
  BlockPool pool_;
  MirroredArray<float> logits_;  // [vocab]
  int64_t score_bytes_ = 0;
};

/// One question on a document: its own KV behind the document's, which stays untouched.
class Question {
 public:
  /// `tokens_max`: of question and answer together. Throws Error(kOutOfMemory) if the pool has too
  /// few blocks, Error(kUsage) if the model's limit has too few positions.
  Question(Pipeline& pipeline, std::shared_ptr<const Document> document, int64_t tokens_max);

  /// Appends tokens; the logits [vocab] of the last one, valid until the next call on the pipeline.
  /// `progress` is called after every step of prefill_rows rows, and may throw to stop.
  /// REQUIRES: tokens is not empty, and no more than tokens_max in all.
  std::span<const float> append(std::span<const TokenId> tokens,
                                const std::function<void(int64_t done)>& progress = {});

 private:
  Pipeline& pipeline_;
  std::shared_ptr<const Document> document_;
  BlockReservation blocks_;
  Sequence sequence_;
  int64_t tokens_max_;
};

struct Answer {
  std::string text;             // without stop string and end token
  std::vector<TokenId> tokens;  // without the end token
  FinishReason finish = FinishReason::kLength;
  double first_token_ms = 0;  // from the start of the question's prefill
  double decode_ms = 0;       // of all further tokens
};

struct AnswerOptions {
  int64_t tokens_max = 128;
  SamplingParams sampling;
  std::vector<std::string> stops;
};

/// Asks one question. `on_text` gets the answer as it grows, whole characters only, and "" after a
/// step that gave none; false stops (throws Cancelled).
Answer answer(Pipeline& pipeline, const Tokenizer& tokenizer,
              const std::shared_ptr<const Document>& document, std::span<const TokenId> question,
              const AnswerOptions& options,
              const std::function<bool(std::string_view text)>& on_text);

}  // namespace pagezip
