// Results as text for people and as JSON for programs.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "api/cli/job.h"
#include "api/cli/session.h"
#include "api/cli/terminal.h"

namespace pagezip {

using Json = nlohmann::ordered_json;

/// A question's answers; the full document's only if both were asked for.
struct AnswerPair {
  Answer answer;
  std::optional<Answer> full;
};

void print_summary(Output& output, const Session& session, const JobPlan& plan,
                   const JobResult& result);
void print_answer_timing(Output& output, const Answer& answer);
std::string json_line(const Json& json);

/// {document, timings, memory, answers}
Json job_json(Session& session, const Options& options, const JobPlan& plan,
              const JobResult& result);
Json answer_json(const std::string& question, size_t prompt_tokens, const AnswerPair& pair);

/// Pairs kept among the document's own, over all of them.
double achieved_ratio(const Document& document);

}  // namespace pagezip
