#include <array>

#include "api/cli/files.h"
#include "api/cli/job.h"
#include "api/cli/verbs.h"

namespace pagezip {

void run_scores(const Options& options) {
  const std::string text = read_document(options.document);
  check_writable(options.output, false);
  Progress progress;
  Session session(options.runtime, &options.compression, progress);
  const JobPlan plan = plan_job(session, options, text);
  session.start(blocks_of_job(session, options, plan));
  session.pipeline().check_fits(static_cast<int64_t>(session.frame().prefix().size()),
                                static_cast<int64_t>(plan.context.size()),
                                &session.frame().repeat());
  JobResult result;
  const ScoreSet scores = run_scoring(session, plan, progress, result);
  write_npy(options.output, std::array<int64_t, 3>{scores.layers, scores.heads, scores.tokens},
            scores.scores);
}

}  // namespace pagezip
