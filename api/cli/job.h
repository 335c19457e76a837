// A document on its way from text to compressed KV, with its timings.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "api/cli/session.h"
#include "paging/document.h"

namespace pagezip {

/// What is to be done, known before any of it is done.
struct JobPlan {
  std::vector<TokenId> context;                 // the document's own tokens
  std::vector<std::vector<TokenId>> questions;  // with the template's postfix
  bool compress = true;
  bool keeps_full = false;     // the full version answers, too
  std::string skipped_reason;  // why it isn't compressed
};

struct JobResult {
  std::shared_ptr<const Document> full;      // null once dropped
  std::shared_ptr<const Document> document;  // compressed, or the full one if not
  int64_t kv_bytes_full = 0;
  int64_t kv_bytes = 0;
  int64_t score_bytes = 0;
  double prefill_ms = 0;
  double score_ms = 0;
  double select_ms = 0;
  double compact_ms = 0;
};

/// Encodes the texts. Throws Error(kUsage) for what the model's limit does not hold.
JobPlan plan_job(const Session& session, const Options& options, const std::string& text);

/// Blocks that the job and its longest question take at once.
int64_t blocks_of_job(const Session& session, const Options& options, const JobPlan& plan);

/// Starts the pipeline and makes the document. Without keeps_full the full version is dropped.
JobResult run_job(Session& session, const Options& options, const JobPlan& plan,
                  Progress& progress);

/// Prefill and scores alone.
ScoreSet run_scoring(Session& session, const JobPlan& plan, Progress& progress, JobResult& result);

/// Throws Error(kUsage) if a question and one token of answer don't fit behind a document.
void check_questions(const Session& session, int64_t document_tokens,
                     const std::vector<std::vector<TokenId>>& questions);

/// Blocks of the longest question with its answer.
int64_t blocks_of_questions(const Session& session, int64_t document_tokens,
                            const std::vector<std::vector<TokenId>>& questions, int64_t answer_max);

}  // namespace pagezip
