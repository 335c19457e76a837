#include "api/cli/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace pagezip {

double mib(int64_t bytes) { return static_cast<double>(bytes) / 1048576.0; }

std::string row(const char* name, const std::string& text) {
  return fmt::format("  {:<11} {}\n", name, text);
}

namespace {

std::string stage_row(const char* name, double ms, int64_t tokens) {
  std::string text = fmt::format("{:>9} ms", group_digits(std::llround(ms)));
  if (tokens > 0 && ms > 0) {
    text +=
        fmt::format("   {} tokens/s",
                    group_digits(static_cast<int64_t>(static_cast<double>(tokens) * 1000 / ms)));
  }
  return row(name, text);
}

}  // namespace

std::vector<int> scored_layers(const Model& model) {
  const KvGroup& group = model.kv_groups().front();
  return group.window == 0 ? group.layers : std::vector<int>();
}

double achieved_ratio(const Document& document) {
  const int64_t tokens = document.logical_length() - document.prefix_length();
  if (!document.compressed() || tokens == 0) {
    return 1;
  }
  const int heads = document.geometry().kv_heads;
  int64_t kept = 0;
  for (int layer = 0; layer < document.global_layers(); ++layer) {
    for (int head = 0; head < heads; ++head) {
      kept += document.retained_own(layer, head);
    }
  }
  return static_cast<double>(kept) /
         static_cast<double>(int64_t{document.global_layers()} * heads * tokens);
}

void print_summary(Output& output, const Session& session, const JobPlan& plan,
                   const JobResult& result) {
  const auto tokens = static_cast<int64_t>(plan.context.size());
  const auto prefix = static_cast<int64_t>(session.frame().prefix().size());
  std::string text = row("document", fmt::format("{:>9} tokens, behind {} of prompt prefix",
                                                 group_digits(tokens), prefix));
  if (plan.compress) {
    text += row("KV cache",
                fmt::format("{:>9.2f} MiB -> {:.2f} MiB: {:.1f}x smaller, {:.1f} % of pairs kept",
                            mib(result.kv_bytes_full), mib(result.kv_bytes),
                            static_cast<double>(result.kv_bytes_full) /
                                static_cast<double>(result.kv_bytes),
                            100 * achieved_ratio(*result.document)));
  } else {
    text += row("KV cache", fmt::format("{:>9.2f} MiB, not compressed", mib(result.kv_bytes_full)));
    text += row("", plan.skipped_reason);
  }
  text += stage_row("prefill", result.prefill_ms, tokens + prefix);
  if (plan.compress) {
    text += stage_row("scoring", result.score_ms, tokens);
    text += stage_row("selection", result.select_ms, 0);
    text += stage_row("compaction", result.compact_ms, 0);
  }
  output.write(text);
}

std::string json_line(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Json retained_json(const Document& document) {
  Json retained = Json::array();
  for (int layer = 0; layer < document.global_layers(); ++layer) {
    Json heads = Json::array();
    for (int head = 0; head < document.geometry().kv_heads; ++head) {
      heads.push_back(document.retained_own(layer, head));
    }
    retained.push_back(std::move(heads));
  }
  return retained;
}

Json memory_json(const BlockPool& pool, int64_t score_bytes) {
  return {{"score_bytes", score_bytes},
          {"pool_bytes", pool.bytes()},
          {"pool_bytes_in_use", pool.blocks_in_use() * pool.geometry().block_bytes()}};
}

Json job_json(Session& session, const Options& options, const JobPlan& plan,
              const JobResult& result) {
  const Document& document = *result.document;
  Json json;
  json["document"] = {{"tokens", plan.context.size()},
                      {"prefix_tokens", session.frame().prefix().size()},
                      {"compressed", plan.compress},
                      {"keep_ratio", options.compression.selection.keep_ratio},
                      {"achieved_ratio", achieved_ratio(document)},
                      {"kv_bytes_full", result.kv_bytes_full},
                      {"kv_bytes", result.kv_bytes},
                      {"scored_layers", scored_layers(session.model())},
                      {"retained", retained_json(document)}};
  if (!plan.compress) {
    json["document"]["skipped_reason"] = plan.skipped_reason;
  }
  json["timings"] = {{"load_ms", session.load_ms()},
                     {"prefill_ms", result.prefill_ms},
                     {"score_ms", result.score_ms},
                     {"select_ms", result.select_ms},
                     {"compact_ms", result.compact_ms}};
  json["memory"] = memory_json(session.pipeline().pool(), result.score_bytes);
  return json;
}

}  // namespace pagezip
