// The ids around documents and questions, equal to those that the golden numbers were made with.

#include <gtest/gtest.h>

#include <optional>

#include "engine/chat_template.h"
#include "engine/prompt.h"
#include "tests/golden_tests/golden_files.h"

namespace pagezip {
namespace {

class PromptGolden : public testing::TestWithParam<GoldenModel> {};

TEST_P(PromptGolden, EveryPartIsEqual) {
  const auto ids = [](const nlohmann::json& json) { return json.get<std::vector<TokenId>>(); };
  const GgufFile file = GgufFile::open(model_path(GetParam()));
  const Tokenizer tokenizer(file);
  const std::optional<ChatTemplate> chat_template = ChatTemplate::of_model(file, tokenizer);
  const PromptFrame frame(chat_template ? &*chat_template : nullptr, tokenizer,
                          "You are a helpful assistant.", 0);
  const nlohmann::json golden = golden_json(GetParam(), "json");

  EXPECT_EQ(std::vector(frame.prefix().begin(), frame.prefix().end()), ids(golden["prefix_ids"]));
  EXPECT_EQ(frame.document(golden["document"].get<std::string>()), ids(golden["context_ids"]));
  EXPECT_EQ(frame.repeat().first, ids(golden["first_prompt_ids"]));
  EXPECT_EQ(frame.repeat().next, ids(golden["next_prompt_ids"]));
  EXPECT_EQ(frame.repeat().postfix, ids(golden["postfix_ids"]));
  for (const auto& row : golden["ratios"]["1.0"]["answers"]) {
    const std::string question = row["question"];
    EXPECT_EQ(frame.question(question), ids(row["ids"])) << question;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, PromptGolden,
                         testing::Values(kSmolLm2, kQwen25, kGemma3, kGemma3Long),
                         [](const auto& instance) {
                           std::string name = instance.param.name;
                           std::erase_if(name, [](char c) { return c == '-' || c == '.'; });
                           return name;
                         });

}  // namespace
}  // namespace pagezip
