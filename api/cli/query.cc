#include <fmt/format.h>

#include <utility>

#include "api/cli/answers.h"
#include "api/cli/job.h"
#include "api/cli/report.h"
#include "api/cli/verbs.h"
#include "base/error.h"
#include "paging/document_file.h"

namespace pagezip {
namespace {

struct OpenedDocument {
  LoadedDocument loaded;
  double read_ms = 0;
};

/// Blocks of the document: the pages of its lists, and of the sliding groups' windows.
int64_t blocks_of_document(const Session& session, const DocumentHeader& header) {
  const PipelineOptions& options = session.pipeline_options();
  const KvGeometry geometry = session.model().kv_geometry(options.kv_type, options.page_tokens);
  const int64_t tokens = header.logical_length();
  int64_t pages = 0;
  for (const uint32_t length : header.lengths) {
    pages += geometry.pages_for(length);
  }
  const int64_t windows = Pipeline::blocks_for_document(session.model(), options, tokens, 0) -
                          geometry.pages_for(tokens);
  return pages / geometry.pages_per_block() + 1 + windows;
}

Json query_json(Session& session, const OpenedDocument& opened) {
  const Document& document = *opened.loaded.document;
  const DocumentIdentity& identity = opened.loaded.header.identity;
  Json json;
  json["document"] = {{"tokens", identity.context_ids.size()},
                      {"prefix_tokens", identity.prefix_ids.size()},
                      {"compressed", document.compressed()},
                      {"keep_ratio", identity.version.keep_ratio},
                      {"achieved_ratio", achieved_ratio(document)},
                      {"kv_bytes", document.kv_bytes()},
                      {"scored_layers", scored_layers(session.model())},
                      {"retained", retained_json(document)}};
  json["timings"] = {{"load_ms", session.load_ms()}, {"read_ms", opened.read_ms}};
  json["memory"] = memory_json(session.pipeline().pool(), 0);
  return json;
}

}  // namespace

void run_query(const Options& options) {
  const DocumentHeader header = read_document_header(options.document);
  // The pages are as they are: the pool takes their type and size, and the prefix is in them.
  RuntimeOptions runtime = options.runtime;
  runtime.kv_type = header.identity.shape.page.k_type;
  runtime.page_tokens = header.identity.shape.page.page_tokens;
  runtime.system = "";
  Output output;
  Progress progress;
  Session session(runtime, nullptr, progress, [&](const ModelIdentity& identity) {
    const std::string difference = why_unfit(header.identity.shape.model, identity);
    if (!difference.empty()) {
      throw Error(ErrorKind::kModelFile,
                  fmt::format("{}: does not fit: {}", options.document, difference));
    }
  });
  std::vector<std::vector<TokenId>> questions;
  questions.reserve(options.questions.size());
  for (const std::string& question : options.questions) {
    questions.push_back(session.frame().question(question));
  }
  const int64_t tokens = header.logical_length();
  check_questions(session, tokens, questions);
  session.start(blocks_of_document(session, header) +
                blocks_of_questions(session, tokens, questions, options.answer.tokens_max));
  BlockPool& pool = session.pipeline().pool();
  const KvShape shape =
      make_kv_shape(session.identity(), session.model().kv_groups(), pool.geometry());
  progress.start("read", "tokens", tokens);
  OpenedDocument opened{load_document(options.document, pool, shape)};
  opened.read_ms = progress.finish();
  Json json = query_json(session, opened);
  const Document& document = *opened.loaded.document;
  if (!options.json) {
    output.write(
        row("document", fmt::format("{:>9} tokens", group_digits(tokens))) +
        row("KV cache", fmt::format("{:>9.2f} MiB, {:.1f} % of pairs kept",
                                    mib(document.kv_bytes()), 100 * achieved_ratio(document))));
  }
  json["answers"] =
      ask_questions(session, options, questions, opened.loaded.document, nullptr, output);
  if (options.json) {
    output.write(json_line(json));
  }
}

}  // namespace pagezip
