// Results as text for people and as JSON for programs.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "api/cli/job.h"
#include "api/cli/session.h"
#include "api/cli/terminal.h"

namespace pagezip {

using Json = nlohmann::ordered_json;

/// One line of a table.
std::string row(const char* name, const std::string& text);
double mib(int64_t bytes);

void print_summary(Output& output, const Session& session, const JobPlan& plan,
                   const JobResult& result);
std::string json_line(const Json& json);

/// {document, timings, memory}
Json job_json(Session& session, const Options& options, const JobPlan& plan,
              const JobResult& result);

Json memory_json(const BlockPool& pool, int64_t score_bytes);
/// [layer][head]: pairs of the document's own.
Json retained_json(const Document& document);

/// Model layers of the global KV group, the only ones that are scored.
std::vector<int> scored_layers(const Model& model);
/// Pairs kept among the document's own, over all of them.
double achieved_ratio(const Document& document);

}  // namespace pagezip
