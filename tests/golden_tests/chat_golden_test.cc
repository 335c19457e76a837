// Chat prompts equal to those that llama.cpp renders with the models' own templates.

#include <gtest/gtest.h>

#include "engine/chat_template.h"
#include "tests/golden_tests/golden_files.h"

namespace pagezip {
namespace {

using nlohmann::json;

TEST(ChatGolden, PromptsAndIdsAreEqual) {
  for (const GoldenModel& model : {kSmolLm2, kQwen25}) {
    const GgufFile file = GgufFile::open(model_path(model));
    const Tokenizer tokenizer(file);
    const auto chat_template = ChatTemplate::of_model(file, tokenizer);
    ASSERT_TRUE(chat_template);
    const json rows = golden_json(model, "chat.json");
    ASSERT_EQ(rows.size(), 3u);
    for (const json& row : rows) {
      std::vector<ChatMessage> messages;
      for (const json& message : row["messages"]) {
        messages.push_back({message["role"], message["content"]});
      }
      const RenderedPrompt prompt = chat_template->render(messages, 0);
      EXPECT_EQ(prompt.text, row["prompt"].get<std::string>());
      EXPECT_EQ(encode_prompt(prompt, tokenizer), row["ids"].get<std::vector<TokenId>>());
    }
  }
}

TEST(ChatGolden, PrefixAndPostfixAreEqual) {
  for (const GoldenModel& model : {kSmolLm2, kQwen25, kGemma3}) {
    const GgufFile file = GgufFile::open(model_path(model));
    const Tokenizer tokenizer(file);
    const auto chat_template = ChatTemplate::of_model(file, tokenizer);
    const PromptParts parts = prompt_parts(chat_template ? &*chat_template : nullptr, tokenizer,
                                           "You are a helpful assistant.", 0);
    const json golden = golden_json(model, "json");
    EXPECT_EQ(parts.prefix, golden["prefix"].get<std::string>());
    EXPECT_EQ(parts.postfix, golden["postfix"].get<std::string>());
    EXPECT_EQ(parts.prefix_ids, golden["prefix_ids"].get<std::vector<TokenId>>());
    EXPECT_EQ(parts.postfix_ids, golden["postfix_ids"].get<std::vector<TokenId>>());
  }
}

}  // namespace
}  // namespace pagezip
