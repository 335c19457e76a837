#include <fmt/format.h>

#include <utility>

#include "api/cli/files.h"
#include "api/cli/job.h"
#include "api/cli/report.h"
#include "api/cli/signals.h"
#include "api/cli/verbs.h"

namespace pagezip {
namespace {

Answer ask_one(Session& session, const Options& options,
               const std::shared_ptr<const Document>& document, std::span<const TokenId> question,
               Output& output) {
  return answer(session.pipeline(), session.tokenizer(), document, question, options.answer,
                [&](std::string_view text) {
                  if (!options.json) {
                    output.write_untrusted(text);
                  }
                  return interrupting_signal() == 0;
                });
}

/// The answer as it grows, under its label, and its timing.
Answer show_one(Session& session, const Options& options, const std::string& label,
                const std::shared_ptr<const Document>& document, std::span<const TokenId> question,
                Output& output) {
  if (!options.json && !label.empty()) {
    output.write(fmt::format("\n{}\n", output.dim(label)));
  }
  Answer given = ask_one(session, options, document, question, output);
  if (!options.json) {
    output.write("\n");
    print_answer_timing(output, given);
  }
  return given;
}

AnswerPair ask_both(Session& session, const Options& options, const JobResult& result,
                    std::span<const TokenId> question, Output& output) {
  if (!options.compare) {
    return {show_one(session, options, "", result.document, question, output), std::nullopt};
  }
  Answer full = show_one(session, options, "[full]", result.full, question, output);
  if (result.document == result.full) {
    return {full, full};
  }
  const std::string label =
      fmt::format("[compressed, {:.0f} % kept]", 100 * achieved_ratio(*result.document));
  return {show_one(session, options, label, result.document, question, output), std::move(full)};
}

}  // namespace

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
  json["answers"] = Json::array();
  for (size_t i = 0; i < plan.questions.size(); ++i) {
    if (!options.json) {
      output.write(fmt::format("\n{}\n", output.bold(options.questions[i])));
    }
    const AnswerPair pair = ask_both(session, options, result, plan.questions[i], output);
    json["answers"].push_back(answer_json(options.questions[i], plan.questions[i].size(), pair));
  }
  if (options.json) {
    output.write(json_line(json));
  }
}

}  // namespace pagezip
