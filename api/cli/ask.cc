#include "api/cli/answers.h"
#include "api/cli/files.h"
#include "api/cli/job.h"
#include "api/cli/report.h"
#include "api/cli/verbs.h"

namespace pagezip {

void run_ask(const Options& options) {
  const std::string text = read_document(options.document);
  Output output;
  Progress progress;
  Session session(options.runtime, &options.compression, progress);
  const JobPlan plan = plan_job(session, options, text);
  const JobResult result = run_job(session, options, plan, progress);
  Json json = job_json(session, options, plan, result);
  if (!options.json) {
    print_summary(output, session, plan, result);
  }
  json["answers"] = ask_questions(session, options, plan.questions, result.document,
                                  options.compare ? result.full : nullptr, output);
  if (options.json) {
    output.write(json_line(json));
  }
}

}  // namespace pagezip
