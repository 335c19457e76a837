#include "api/cli/job.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace pagezip {
namespace {

int64_t count(const auto& list) { return static_cast<int64_t>(list.size()); }

int64_t document_tokens(const Session& session, const JobPlan& plan) {
  return count(session.frame().prefix()) + count(plan.context);
}

PipelineProgress progress_of(Progress& progress) {
  return [&progress](Stage, int64_t done, int64_t) { return progress.advance(done); };
}

// Floors can keep more than the ratio says.
double keep_at_most(const SelectionOptions& selection, int64_t tokens) {
  const double floors = static_cast<double>(selection.min_per_head) /
                        static_cast<double>(std::max<int64_t>(tokens, 1));
  return std::min(1.0, std::max(selection.keep_ratio, floors));
}

}  // namespace

void check_questions(const Session& session, int64_t document_tokens,
                     const std::vector<std::vector<TokenId>>& questions) {
  for (size_t i = 0; i < questions.size(); ++i) {
    if (document_tokens + count(questions[i]) + 1 > session.context_max()) {
      throw Error(
          ErrorKind::kUsage,
          fmt::format("question {} is too long: its {} tokens behind a document of {} leave "
                      "no room in the limit of {} positions",
                      i + 1, questions[i].size(), document_tokens, session.context_max()));
    }
  }
}

int64_t blocks_of_questions(const Session& session, int64_t document_tokens,
                            const std::vector<std::vector<TokenId>>& questions,
                            int64_t answer_max) {
  int64_t tokens = 0;
  for (const auto& question : questions) {
    tokens = std::max(
        tokens, std::min(count(question) + answer_max, session.context_max() - document_tokens));
  }
  return Pipeline::blocks_for_question(session.model(), session.pipeline_options(), tokens);
}

JobPlan plan_job(const Session& session, const Options& options, const std::string& text) {
  JobPlan plan;
  plan.context = session.frame().document(text);
  for (const std::string& question : options.questions) {
    plan.questions.push_back(session.frame().question(question));
  }
  plan.keeps_full = options.compare;
  if (count(plan.context) < options.compression.min_context) {
    plan.compress = false;
    plan.skipped_reason = fmt::format("{} tokens are fewer than --min-context {}",
                                      plan.context.size(), options.compression.min_context);
  }
  return plan;
}

int64_t blocks_of_job(const Session& session, const Options& options, const JobPlan& plan) {
  const int64_t tokens = document_tokens(session, plan);
  const double keep =
      plan.compress ? keep_at_most(options.compression.selection, count(plan.context)) : 0;
  const int64_t document =
      Pipeline::blocks_for_document(session.model(), session.pipeline_options(), tokens, keep);
  const int64_t questions =
      blocks_of_questions(session, tokens, plan.questions, options.answer.tokens_max);
  if (!plan.compress || plan.keeps_full) {
    return document + questions;
  }
  // Questions come when the full version's own blocks are free again.
  const int64_t freed = count(plan.context) / session.pipeline_options().page_tokens;
  return document + std::max<int64_t>(0, questions - freed);
}

ScoreSet run_scoring(Session& session, const JobPlan& plan, Progress& progress, JobResult& result) {
  Pipeline& pipeline = session.pipeline();
  const PipelineProgress report = progress_of(progress);
  progress.start("prefill", "tokens", document_tokens(session, plan));
  result.full = pipeline.prefill(session.frame().prefix(), plan.context, report);
  result.prefill_ms = progress.finish();
  result.kv_bytes_full = result.full->kv_bytes();
  if (!plan.compress) {
    return {};
  }
  progress.start("score", "tokens", count(plan.context));
  ScoreSet scores = pipeline.score(result.full, plan.context, session.frame().repeat(), report);
  result.score_ms = progress.finish();
  result.score_bytes = pipeline.score_bytes();
  return scores;
}

JobResult run_job(Session& session, const Options& options, const JobPlan& plan,
                  Progress& progress) {
  session.start(blocks_of_job(session, options, plan));
  Pipeline& pipeline = session.pipeline();
  pipeline.check_fits(count(session.frame().prefix()), count(plan.context),
                      plan.compress ? &session.frame().repeat() : nullptr);
  check_questions(session, document_tokens(session, plan), plan.questions);
  JobResult result;
  const ScoreSet scores = run_scoring(session, plan, progress, result);
  if (plan.compress) {
    progress.start("select", "pairs", scores.pairs());
    KeptSets kept = Pipeline::select(scores, options.compression.selection);
    result.select_ms = progress.finish();
    progress.start("compact", "layers", scores.layers);
    result.document = pipeline.compact(result.full, std::move(kept), progress_of(progress));
    result.compact_ms = progress.finish();
    if (!plan.keeps_full) {
      result.full.reset();
    }
  } else {
    result.document = result.full;
  }
  result.kv_bytes = result.document->kv_bytes();
  return result;
}

}  // namespace pagezip
