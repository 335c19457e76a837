#include "api/cli/report.h"

#include <fmt/format.h>

#include <algorithm>

namespace pagezip {
namespace {

double mib(int64_t bytes) { return static_cast<double>(bytes) / 1048576.0; }

/// Forward passes behind the first token, and how long each took.
struct DecodeRate {
  int64_t steps;
  double ms_per_step;
  double per_second;
};

DecodeRate decode_rate(const Answer& answer) {
  const int64_t sampled =
      static_cast<int64_t>(answer.tokens.size()) + (answer.finish == FinishReason::kEnd ? 1 : 0);
  const int64_t steps = sampled - 1;
  if (steps <= 0 || answer.decode_ms <= 0) {
    return {0, 0, 0};
  }
  const double ms = answer.decode_ms / static_cast<double>(steps);
  return {steps, ms, 1000 / ms};
}

const char* finish_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kEnd:
      return "end";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kStopString:
      return "stop";
  }
  return "";
}

/// Model layers of the global KV group, the only ones that are scored.
std::vector<int> scored_layers(const Model& model) {
  const KvGroup& group = model.kv_groups().front();
  return group.window == 0 ? group.layers : std::vector<int>();
}

std::string row(const char* name, const std::string& text) {
  return fmt::format("  {:<11} {}\n", name, text);
}

std::string stage_row(const char* name, double ms, int64_t tokens) {
  std::string text = fmt::format("{:>9} ms", group_digits(static_cast<int64_t>(ms + 0.5)));
  if (tokens > 0 && ms > 0) {
    text +=
        fmt::format("   {} tokens/s",
                    group_digits(static_cast<int64_t>(static_cast<double>(tokens) * 1000 / ms)));
  }
  return row(name, text);
}

}  // namespace

double achieved_ratio(const Document& document) {
  const int64_t tokens = document.logical_length() - document.prefix_length();
  if (!document.compressed() || tokens == 0) {
    return 1;
  }
  const Segment segment = document.segment(0);
  const int heads = segment.heads;
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

void print_answer_timing(Output& output, const Answer& answer) {
  const DecodeRate rate = decode_rate(answer);
  std::string text = fmt::format("  {} tokens; first after {:.0f} ms", answer.tokens.size(),
                                 answer.first_token_ms);
  if (rate.steps > 0) {
    text += fmt::format(", then {:.1f} ms per token", rate.ms_per_step);
  }
  if (answer.finish == FinishReason::kLength) {
    text += "; cut at the length limit";
  }
  output.write(output.dim(text) + "\n");
}

std::string json_line(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Json job_json(Session& session, const Options& options, const JobPlan& plan,
              const JobResult& result) {
  const Document& document = *result.document;
  Json retained = Json::array();
  for (int layer = 0; layer < document.global_layers(); ++layer) {
    Json heads = Json::array();
    for (int head = 0; head < session.model().config().kv_heads; ++head) {
      heads.push_back(document.retained_own(layer, head));
    }
    retained.push_back(std::move(heads));
  }
  Json json;
  json["document"] = {{"tokens", plan.context.size()},
                      {"prefix_tokens", session.frame().prefix().size()},
                      {"compressed", plan.compress},
                      {"keep_ratio", options.compression.selection.keep_ratio},
                      {"achieved_ratio", achieved_ratio(document)},
                      {"kv_bytes_full", result.kv_bytes_full},
                      {"kv_bytes", result.kv_bytes},
                      {"scored_layers", scored_layers(session.model())},
                      {"retained", std::move(retained)}};
  if (!plan.compress) {
    json["document"]["skipped_reason"] = plan.skipped_reason;
  }
  json["timings"] = {{"load_ms", session.load_ms()},
                     {"prefill_ms", result.prefill_ms},
                     {"score_ms", result.score_ms},
                     {"select_ms", result.select_ms},
                     {"compact_ms", result.compact_ms}};
  const BlockPool& pool = session.pipeline().pool();
  json["memory"] = {{"score_bytes", result.score_bytes},
                    {"pool_bytes", pool.bytes()},
                    {"pool_bytes_in_use", pool.blocks_in_use() * pool.geometry().block_bytes()}};
  return json;
}

Json answer_json(const std::string& question, size_t prompt_tokens, const AnswerPair& pair) {
  const auto fill = [](Json& json, const Answer& answer) {
    json["text"] = answer.text;
    json["token_ids"] = answer.tokens;
    json["finish_reason"] = finish_name(answer.finish);
    json["first_token_ms"] = answer.first_token_ms;
    json["decode_tokens_per_s"] = decode_rate(answer).per_second;
  };
  Json json;
  json["question"] = question;
  json["prompt_tokens"] = prompt_tokens;
  fill(json, pair.answer);
  if (pair.full) {
    fill(json["full"], *pair.full);
  }
  return json;
}

}  // namespace pagezip
