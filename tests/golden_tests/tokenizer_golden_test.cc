// Token ids of hard strings, equal to those of llama.cpp (tests/golden/README.md).

#include <gtest/gtest.h>

#include <chrono>
#include <set>

#include "engine/gguf.h"
#include "engine/tokenizer.h"
#include "tests/golden_tests/golden_files.h"

namespace pagezip {
namespace {

using nlohmann::json;

class TokenizerGolden : public testing::TestWithParam<GoldenModel> {
 protected:
  Tokenizer load() const { return Tokenizer(GgufFile::open(model_path(GetParam()))); }
};

TEST_P(TokenizerGolden, EveryRowIsEqual) {
  const Tokenizer tokenizer = load();
  const json rows = golden_json(GetParam(), "tokenizer.json");
  ASSERT_GE(rows.size(), 100u);
  for (const json& row : rows) {
    const std::string text = row["text"];
    const auto expected = row["ids"].get<std::vector<TokenId>>();
    EXPECT_EQ(tokenizer.encode(text, row["parse_special"]), expected)
        << json(text) << " parse_special " << row["parse_special"];
    EXPECT_EQ(tokenizer.decode(expected, true), row["detokenized"].get<std::string>());
    StreamDecoder stream(tokenizer);
    std::string streamed;
    for (const TokenId id : expected) streamed += stream.feed(id);
    EXPECT_EQ(streamed + stream.flush(), tokenizer.decode(expected, false));
  }
}

TEST_P(TokenizerGolden, TheDocumentAndTheEndTokensAreEqual) {
  const Tokenizer tokenizer = load();
  const json golden = golden_json(GetParam(), "json");
  EXPECT_EQ(tokenizer.encode(golden["document"].get<std::string>(), true),
            golden["context_ids"].get<std::vector<TokenId>>());
  const auto ends = tokenizer.end_of_generation();
  EXPECT_EQ(std::vector<TokenId>(ends.begin(), ends.end()),
            golden["end_ids"].get<std::vector<TokenId>>());
}

TEST_P(TokenizerGolden, LongTextsTakeLinearTimeAndComeBack) {
  const Tokenizer tokenizer = load();
  constexpr size_t kBytes = 1 << 20;
  std::string unspaced;
  for (size_t i = 0; unspaced.size() < kBytes; ++i) unspaced += static_cast<char>('a' + i * i % 23);
  std::string mixed;
  while (mixed.size() < kBytes) mixed += "\xe6\xbc\xa2\xe5\xad\x97 \n\t(x)!";
  for (const std::string& text :
       {std::string(kBytes, 'a'), std::string(kBytes, ' '), std::string(kBytes, '\n'),
        std::string(kBytes, '<'), std::string(kBytes, ' ') + "x", unspaced, mixed}) {
    const auto start = std::chrono::steady_clock::now();
    const std::vector<TokenId> ids = tokenizer.encode(text, true);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    EXPECT_EQ(tokenizer.decode(ids, true), text) << text.substr(0, 20);
    EXPECT_LT(seconds.count(), 20) << text.substr(0, 20);  // quadratic work takes hours
    std::printf("  %.10s...: %.2f s\n", json(text.substr(0, 9)).dump().c_str(), seconds.count());
  }
}

TEST_P(TokenizerGolden, EnglishTextIsFast) {
  const Tokenizer tokenizer = load();
  std::string text;
  while (text.size() < (4 << 20)) {
    for (const GoldenModel& model : {kSmolLm2, kQwen25, kGemma3}) {
      text += golden_json(model, "json")["document"].get<std::string>();
    }
  }
  const auto start = std::chrono::steady_clock::now();
  EXPECT_GT(tokenizer.encode(text, false).size(), text.size() / 8);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  const double mb_per_s = static_cast<double>(text.size()) / 1e6 / seconds.count();
  RecordProperty("mb_per_s", std::to_string(mb_per_s));
  std::printf("  %s: %.1f MB/s\n", GetParam().name, mb_per_s);
}

INSTANTIATE_TEST_SUITE_P(Models, TokenizerGolden, testing::Values(kSmolLm2, kQwen25, kGemma3),
                         [](const auto& instance) {
                           std::string name = instance.param.name;
                           std::erase_if(name, [](char c) { return c == '-' || c == '.'; });
                           return name;
                         });

}  // namespace
}  // namespace pagezip
