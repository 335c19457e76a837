// What the scheduler is asked to do, and what it says about it.
//
// Two kinds of work: *requests*, which generate tokens behind a prompt and maybe behind a document,
// and *document jobs*, which prefill, score, select and compact a text. Both are plain data; texts,
// sampling and streams belong to the engine.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "paging/document.h"
#include "paging/selection.h"

namespace pagezip {

/// Names a request or a document job. Ids grow in the order of arrival and are never used twice.
using WorkId = uint64_t;

/// One output of a request (`n` of the OpenAI API gives a request several).
struct ChoiceKey {
  WorkId request = 0;
  uint32_t choice = 0;
  friend auto operator<=>(const ChoiceKey&, const ChoiceKey&) = default;
};

struct RequestSpec {
  WorkId id = 0;
  std::string tenant;  // of the fairness between tenants
  int priority = 0;    // higher is served earlier
  /// The chain space of its cached prefix (paging/prefix_index.h): who may share blocks with it,
  /// and behind which document.
  std::string space;
  std::shared_ptr<const Document> document;  // or null
  std::vector<TokenId> prompt;               // behind the document; not empty
  int64_t output_max = 1;                    // tokens of every choice; 0: only the prompt
  uint32_t choices = 1;
  /// How probable each token of the prompt was, but the first. That takes the row before each of
  /// them: none is read from the prefix cache.
  bool prompt_logprobs = false;
  bool ignore_end = false;  // go on after end tokens, up to output_max
};

/// A chunk of a document to score, with its whole repeat prompt.
struct ScoreChunk {
  int64_t begin = 0;  // [begin, end) of the document's own tokens
  int64_t end = 0;
  std::vector<TokenId> tokens;  // repeat prompt and the chunk's own text
};

struct DocumentSpec {
  WorkId id = 0;
  std::string tenant;
  int priority = 0;
  std::string space;                  // of the prefill's exact blocks
  std::vector<TokenId> prefix;        // system prefix
  std::vector<TokenId> context;       // the document's own tokens; not empty
  std::vector<ScoreChunk> chunks;     // cover the context, in order; empty: no scoring
  std::vector<VersionSpec> versions;  // empty: only the full version
  /// Scores of an earlier job on the same tokens, or null: then `chunks` are scored.
  std::shared_ptr<const ScoreSet> scores;
  /// A version that has all pairs of `versions`, and how it was cut (nothing: it has every pair).
  /// Nothing is prefilled then. REQUIRES: scores.
  std::shared_ptr<const Document> source;
  std::optional<VersionSpec> source_cut;
  /// What the document stands behind, or null. REQUIRES: no prefix with a parent.
  std::shared_ptr<const Document> parent;
};

/// The answer to a submission.
enum class Admission : uint8_t {
  kAccepted,
  kBusy,     // the queue is full: try again later
  kTooLarge  // it could never run: too many blocks for this pool
};

enum class FinishReason : uint8_t {
  kEnd,         // an end token, which isn't part of the output
  kLength,      // output_max tokens
  kStopString,  // found by the engine
  kCancelled,
  kFailed,  // no token could be sampled: the model gave logits that are not numbers
};

enum class JobStage : uint8_t { kQueued, kPrefill, kScore, kSelect, kCompact };
const char* name_of(JobStage stage);  // "prefill"

/// What happened to requests and jobs in a commit, in this order.
struct Event {
  enum class Kind : uint8_t {
    kStarted,         // key; done: tokens of the prompt that the cache had, total: of the prompt
    kPromptLogprobs,  // key, slot, total: of so many further tokens of the prompt
    kToken,           // key, token, slot
    kFinished,        // key, finish; token and slot if it is kEnd
    kProgress,        // key.request, stage, done, total
    kFullReady,       // key.request, document: every pair, prefilled
    kScored,          // key.request, scores
    kVersionReady,    // key.request, version (index in the spec), document
    kJobDone,         // key.request
    kJobFailed,       // key.request, error
  };
  Kind kind = Kind::kToken;
  ChoiceKey key;
  TokenId token = 0;
  int64_t slot = 0;  // of the step's result, which knows log-probabilities; or the first target
  FinishReason finish = FinishReason::kEnd;
  JobStage stage = JobStage::kQueued;
  int64_t done = 0;
  int64_t total = 0;
  size_t version = 0;
  std::shared_ptr<const Document> document;
  std::shared_ptr<const ScoreSet> scores;
  std::string error;
};

}  // namespace pagezip
