#include <fmt/format.h>

#include <ctime>
#include <filesystem>

#include "api/cli/files.h"
#include "api/cli/job.h"
#include "api/cli/report.h"
#include "api/cli/verbs.h"
#include "paging/document_file.h"

namespace pagezip {
namespace {

DocumentIdentity identity_of(Session& session, const Options& options, const JobPlan& plan) {
  const std::span<const TokenId> prefix = session.frame().prefix();
  const CompressionOptions& compression = options.compression;
  DocumentIdentity identity;
  identity.shape = make_kv_shape(session.identity(), session.model().kv_groups(),
                                 session.pipeline().pool().geometry());
  identity.prefix_ids.assign(prefix.begin(), prefix.end());
  identity.context_ids = plan.context;
  identity.scorer =
      compression.score_function == ScoreFunction::kProbability ? "kvzip" : "kvzip-logit";
  identity.scorer_version = kScorerVersion;
  identity.chunk_tokens = compression.chunk_tokens;
  identity.version = {false,
                      compression.selection.selector == Selector::kGlobal ? "global" : "uniform",
                      compression.selection.keep_ratio, compression.selection.min_per_head};
  identity.provenance =
      fmt::format("pagezip {}, {} kernels", PAGEZIP_VERSION, session.kernels().name);
  return identity;
}

// A file of the command line has a name but no id: it is nobody's until it is imported.
DocumentListing listing_of(const Options& options) {
  DocumentListing listing;
  listing.name = std::filesystem::path(options.document).filename().string();
  if (!is_plain_text(listing.name, DocumentListing::kNameBytesMax)) {
    listing.name.clear();
  }
  listing.created_s = std::time(nullptr);
  return listing;
}

}  // namespace

void run_compress(const Options& options) {
  const std::string text = read_document(options.document);
  check_writable(options.output, true);
  Output output;
  Progress progress;
  Session session(options.runtime, &options.compression, progress);
  const JobPlan plan = plan_job(session, options, text);
  const JobResult result = run_job(session, options, plan, progress);
  save_document(options.output, *result.document, identity_of(session, options, plan),
                listing_of(options));
  const auto bytes = static_cast<int64_t>(std::filesystem::file_size(options.output));
  if (options.json) {
    Json json = job_json(session, options, plan, result);
    json["file"] = {{"path", options.output}, {"bytes", bytes}};
    output.write(json_line(json));
    return;
  }
  print_summary(output, session, plan, result);
  output.write(row("file", fmt::format("{:>9.2f} MiB in {}", mib(bytes), options.output)));
}

}  // namespace pagezip
