#include "api/cli/answers.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "api/cli/signals.h"

namespace pagezip {
namespace {

/// A question's answers; the full document's only if both were asked for.
struct AnswerPair {
  Answer answer;
  std::optional<Answer> full;
};

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
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kFailed:
      return "failed";
  }
  return "";
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

AnswerPair ask_both(Session& session, const Options& options,
                    const std::shared_ptr<const Document>& document,
                    const std::shared_ptr<const Document>& full, std::span<const TokenId> question,
                    Output& output) {
  if (full == nullptr) {
    return {show_one(session, options, "", document, question, output), std::nullopt};
  }
  Answer first = show_one(session, options, "[full]", full, question, output);
  if (document == full) {
    return {first, first};
  }
  const std::string label =
      fmt::format("[compressed, {:.0f} % kept]", 100 * achieved_ratio(*document));
  return {show_one(session, options, label, document, question, output), std::move(first)};
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

}  // namespace

Json ask_questions(Session& session, const Options& options,
                   const std::vector<std::vector<TokenId>>& questions,
                   const std::shared_ptr<const Document>& document,
                   const std::shared_ptr<const Document>& full, Output& output) {
  Json answers = Json::array();
  for (size_t i = 0; i < questions.size(); ++i) {
    if (!options.json) {
      output.write(fmt::format("\n{}\n", output.bold(options.questions[i])));
    }
    const AnswerPair pair = ask_both(session, options, document, full, questions[i], output);
    answers.push_back(answer_json(options.questions[i], questions[i].size(), pair));
  }
  return answers;
}

}  // namespace pagezip
