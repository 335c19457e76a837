#include "engine/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "base/error.h"
#include "base/prng.h"
#include "engine/utf8.h"
#include "tests/tiny_tokenizer.h"

namespace pagezip {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::string kMark = "\xe2\x96\x81";

Tokenizer make(const GgufWriter& writer) {
  return Tokenizer(GgufFile::from_bytes(writer.bytes(), "t.gguf"));
}

/// The pieces that a text is cut into, for readable expectations.
std::vector<std::string> pieces(const Tokenizer& tokenizer, std::string_view text,
                                bool parse_special = false) {
  std::vector<std::string> result;
  for (const TokenId id : tokenizer.encode(text, parse_special)) {
    result.push_back(tokenizer.piece(id));
  }
  return result;
}

TEST(BpeTokenizer, MergesByRankFromTheLeft) {
  const Tokenizer tokenizer = make(bpe_file(tiny_bpe()));
  EXPECT_THAT(pieces(tokenizer, "abc"), ElementsAre("abc"));
  EXPECT_THAT(pieces(tokenizer, "bc abc"), ElementsAre("bc", " ", "abc"));
  EXPECT_THAT(pieces(tokenizer, "aaaaaaa"), ElementsAre("aaaa", "aa", "a"));
  EXPECT_THAT(pieces(tokenizer, "c\xc3\xa9"), ElementsAre("c\xc3\xa9"));
  EXPECT_THAT(tokenizer.encode("", true), IsEmpty());
}

TEST(BpeTokenizer, EachPreTokenizerCutsNumbersItsWay) {
  TinyVocabulary vocabulary = tiny_bpe();
  vocabulary.add_merge("123", "4");
  const std::map<std::string, std::vector<std::string>> expected = {
      {"gpt-2", {"1234"}},
      {"default", {"123", "4"}},
      {"smollm", {"1", "2", "3", "4"}},
      {"qwen2", {"1", "2", "3", "4"}},
      {"llama-bpe", {"123", "4"}},
      {"llama3", {"123", "4"}},
      {"llama-v3", {"123", "4"}},
  };
  for (const auto& [pre, numbers] : expected) {
    EXPECT_EQ(pieces(make(bpe_file(vocabulary, pre)), "1234"), numbers) << pre;
  }
}

TEST(BpeTokenizer, LlamaTakesAWordThatIsATokenWithoutMerging) {
  TinyVocabulary vocabulary = tiny_bpe();
  vocabulary.add(byte_level("xyz"));
  EXPECT_THAT(pieces(make(bpe_file(vocabulary, "gpt-2")), "xyz"), ElementsAre("x", "y", "z"));
  EXPECT_THAT(pieces(make(bpe_file(vocabulary, "llama-bpe")), "xyz"), ElementsAre("xyz"));
}

TEST(BpeTokenizer, AByteWithoutATokenIsLeftOut) {
  TinyVocabulary vocabulary = tiny_bpe();
  vocabulary.tokens['x'] = "[gone]";
  EXPECT_THAT(pieces(make(bpe_file(vocabulary)), "axb"), ElementsAre("a", "b"));
}

/// What the merges say, done the slow way.
std::vector<std::string> naive_bpe(std::string_view word, const TinyVocabulary& vocabulary) {
  std::vector<std::string> parts;
  for (const char c : word) parts.push_back(byte_level(std::string(1, c)));
  while (true) {
    size_t best_rank = vocabulary.merges.size();
    size_t best = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto& merges = vocabulary.merges;
      const auto rank = static_cast<size_t>(
          std::find(merges.begin(), merges.end(), parts[i] + " " + parts[i + 1]) - merges.begin());
      if (rank < best_rank) {
        best_rank = rank;
        best = i;
      }
    }
    if (best_rank == vocabulary.merges.size()) return parts;
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + static_cast<long>(best) + 1);
  }
}

TEST(BpeTokenizer, EqualsTheSlowWayOnRandomWords) {
  Prng prng(1);
  TinyVocabulary vocabulary = tiny_bpe();
  std::vector<std::string> known = {"a", "b", "c"};
  for (int i = 0; i < 60; ++i) {
    const std::string left = known[prng.below(known.size())];
    const std::string right = known[prng.below(known.size())];
    const std::string whole = byte_level(left + right);
    if (std::count(vocabulary.tokens.begin(), vocabulary.tokens.end(), whole) > 0) continue;
    vocabulary.add_merge(left, right);
    known.push_back(left + right);
  }
  const Tokenizer tokenizer = make(bpe_file(vocabulary));
  for (int round = 0; round < 500; ++round) {
    std::string word;
    for (int64_t i = prng.range(1, 40); i > 0; --i) word += static_cast<char>(prng.range('a', 'c'));
    EXPECT_EQ(pieces(tokenizer, word), naive_bpe(word, vocabulary)) << word;
  }
}

TEST(SpmTokenizer, MergesByScoreAndFallsBackToBytes) {
  const Tokenizer tokenizer = make(spm_file(tiny_spm(), false));
  EXPECT_THAT(pieces(tokenizer, "abc"), ElementsAre("abc"));
  EXPECT_THAT(pieces(tokenizer, " abc"), ElementsAre(" ab", "c"));
  EXPECT_THAT(pieces(tokenizer, "\xc3\xa9\xc3\xa8"), ElementsAre("\xc3\xa9", "\xc3", "\xa8"));
  EXPECT_THAT(pieces(tokenizer, "  a"), ElementsAre(" ", " a"));
  // A token may reach across a space.
  EXPECT_THAT(pieces(tokenizer, "c a"), ElementsAre("c a"));
}

TEST(SpmTokenizer, ASpacePrefixComesAfterNothingAndAfterSpecialTokensAndGoesAgain) {
  const Tokenizer tokenizer = make(spm_file(tiny_spm(), true));
  EXPECT_THAT(pieces(tokenizer, "a"), ElementsAre(" a"));
  EXPECT_THAT(pieces(tokenizer, "a</s>ab", true), ElementsAre(" a", "</s>", " ab"));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("ab c", false), false), "ab c");
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(" ab", false), false), " ab");
}

TEST(SpmTokenizer, TextNeverMergesToAControlOrByteToken) {
  // "</" and "s>" are tokens, and their concatenation is the name of the end of the text.
  const Tokenizer tokenizer = make(spm_file(tiny_spm(), false));
  EXPECT_THAT(pieces(tokenizer, "</s>"), ElementsAre("</", "s>"));
  TinyVocabulary vocabulary = tiny_spm();
  vocabulary.add("<0x4", 1, 0);
  for (const char* part : {"<0", "x4", "1>", "0", "x", "4", "1"}) vocabulary.add(part, 1, -1);
  for (const TokenId id : make(spm_file(vocabulary, false)).encode("<0x41>", false)) {
    EXPECT_NE(id, 3 + 0x41);
  }
}

TEST(SpmTokenizer, CuttingAtSpacesChangesNothing) {
  // The same pieces with and without a token that forbids cuts everywhere: its score is too low
  // for it ever to be made.
  TinyVocabulary cut = tiny_spm();
  TinyVocabulary uncut = tiny_spm();
  for (const char c : {'a', 'b', 'c'}) uncut.add(std::string(1, c) + kMark + "zz", 1, -1000);
  const Tokenizer with_cuts = make(spm_file(cut, false));
  const Tokenizer without_cuts = make(spm_file(uncut, false));
  Prng prng(2);
  for (int round = 0; round < 500; ++round) {
    std::string text;
    for (int64_t i = prng.range(1, 60); i > 0; --i) text += "abc  \xc3\xa9"[prng.below(7)];
    EXPECT_EQ(with_cuts.encode(text, false), without_cuts.encode(text, false)) << text;
  }
}

TEST(Tokenizer, ControlTokensOnlyWhereAskedUserTokensAlways) {
  for (const Tokenizer& tokenizer :
       {make(bpe_file(tiny_bpe())), make(spm_file(tiny_spm(), false))}) {
    const TokenId control = *tokenizer.find(tokenizer.find("</s>") ? "</s>" : "<|im_end|>");
    const std::string text = "a" + tokenizer.piece(control) + "<tool>b";
    EXPECT_TRUE(tokenizer.is_control(control));
    EXPECT_THAT(tokenizer.encode(text, false), testing::Not(testing::Contains(control)));
    EXPECT_THAT(tokenizer.encode(text, false), testing::Contains(*tokenizer.find("<tool>")));
    EXPECT_THAT(pieces(tokenizer, text, true),
                ElementsAre("a", tokenizer.piece(control), "<tool>", "b"));
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, true), true), text);
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, true), false), "a<tool>b");
  }
}

TEST(Tokenizer, TheLongestSpecialTokenWins) {
  TinyVocabulary vocabulary = tiny_bpe();
  vocabulary.add("<t>", 4);
  vocabulary.add("<t>\n<t>", 4);
  vocabulary.add("<t>\n<t>\n", 3);
  const Tokenizer tokenizer = make(bpe_file(vocabulary));
  EXPECT_THAT(pieces(tokenizer, "<t>\n<t>\n<t"), ElementsAre("<t>\n<t>", "\n", "<", "t"));
  EXPECT_THAT(pieces(tokenizer, "<t>\n<t>\n<t", true), ElementsAre("<t>\n<t>\n", "<", "t"));
}

TEST(Tokenizer, EndOfGenerationTokensAreControlTokens) {
  TinyVocabulary vocabulary = tiny_bpe();
  const TokenId end_of_turn = vocabulary.add("<end_of_turn>", 4);
  const TokenId plain = vocabulary.add(byte_level("stop"));
  GgufWriter writer = bpe_file(vocabulary);
  writer.add("tokenizer.ggml.eot_token_id", static_cast<uint32_t>(plain));
  const Tokenizer tokenizer = make(writer);
  const TokenId im_end = *tokenizer.find("<|im_end|>");
  EXPECT_THAT(tokenizer.end_of_generation(), ElementsAre(im_end, end_of_turn, plain));
  EXPECT_TRUE(tokenizer.is_end_of_generation(plain));
  EXPECT_FALSE(tokenizer.is_end_of_generation(0));
  EXPECT_THAT(tokenizer.encode("<end_of_turn>", false),
              testing::Not(testing::Contains(end_of_turn)));
  EXPECT_FALSE(tokenizer.bos().has_value());
  EXPECT_FALSE(tokenizer.add_bos());
  EXPECT_TRUE(make(spm_file(tiny_spm(), true)).add_bos());
}

TEST(Tokenizer, AnyBytesComeBackOrBecomeReplacementCharacters) {
  Prng prng(3);
  const Tokenizer tokenizers[] = {make(bpe_file(tiny_bpe(), "qwen2")),
                                  make(bpe_file(tiny_bpe(), "smollm")),
                                  make(spm_file(tiny_spm(), true))};
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (int64_t i = prng.range(0, 30); i > 0; --i) {
      text += prng.chance(0.5) ? static_cast<char>(prng.below(256))
                               : "ab <|im_end|>\xc3\xa9"[prng.below(15)];
    }
    for (const Tokenizer& tokenizer : tokenizers) {
      const std::vector<TokenId> ids = tokenizer.encode(text, false);
      EXPECT_EQ(tokenizer.decode(ids, true), to_valid_utf8(text));
      StreamDecoder stream(tokenizer);
      std::string streamed;
      for (const TokenId id : ids) {
        const std::string part = stream.feed(id);
        EXPECT_EQ(valid_utf8_bytes(part), part.size());
        streamed += part;
      }
      streamed += stream.flush();
      if (tokenizer.find("<s>") && !ids.empty() && !streamed.empty()) streamed.erase(0, 1);
      EXPECT_EQ(streamed, to_valid_utf8(text));
    }
  }
}

TEST(StreamDecoder, WaitsForTheWholeCharacter) {
  const Tokenizer tokenizer = make(bpe_file(tiny_bpe()));
  StreamDecoder stream(tokenizer);
  EXPECT_EQ(stream.feed(0xf0), "");
  EXPECT_EQ(stream.feed(0x9f), "");
  EXPECT_EQ(stream.feed(*tokenizer.find("<|im_end|>")), "");
  EXPECT_EQ(stream.feed(0x98), "");
  EXPECT_EQ(stream.feed(0x80), "\xf0\x9f\x98\x80");
  EXPECT_EQ(stream.feed(0xe2), "");
  EXPECT_EQ(stream.feed('x'), "\xef\xbf\xbdx");
  EXPECT_EQ(stream.feed(0xe2), "");
  EXPECT_EQ(stream.flush(), "\xef\xbf\xbd");
  EXPECT_EQ(stream.flush(), "");
}

TEST(SpmTokenizer, TextThatCannotBeSpeltNeverEndsATurn) {
  const auto encode_a = [](int32_t type_of_unknown, int32_t end) {
    TinyVocabulary vocabulary;
    vocabulary.add("<unk>", type_of_unknown);
    vocabulary.add("<0x41>", 6);
    vocabulary.add("<end>", 3);
    GgufWriter writer;
    writer.add("tokenizer.ggml.model", "llama")
        .add_array("tokenizer.ggml.tokens", vocabulary.tokens)
        .add_array("tokenizer.ggml.token_type", vocabulary.types)
        .add_array("tokenizer.ggml.scores", vocabulary.scores)
        .add("tokenizer.ggml.add_space_prefix", false)
        .add("tokenizer.ggml.unknown_token_id", uint32_t{0})
        .add("tokenizer.ggml.eos_token_id", end);
    return make(writer).encode("AB", false);
  };
  EXPECT_THAT(encode_a(2, 2), ElementsAre(1, 0));
  EXPECT_THAT(encode_a(1, 2), ElementsAre(1, 0));
  EXPECT_THAT(encode_a(3, 2), ElementsAre(1));
  EXPECT_THAT(encode_a(2, 0), ElementsAre(1));
  EXPECT_THAT(encode_a(2, 1), ElementsAre(0, 0));  // the byte token of A is the end
}

TEST(Tokenizer, LongRunsDoNotTakeQuadraticTime) {
  constexpr size_t kBytes = 1 << 18;  // quadratic work would take many minutes
  for (const Tokenizer& tokenizer :
       {make(bpe_file(tiny_bpe(), "qwen2")), make(bpe_file(tiny_bpe(), "default")),
        make(spm_file(tiny_spm(), false))}) {
    for (const char* unit : {"a", " ", "abc", "\n", "<", "1", "'", "\xff", "</s"}) {
      std::string text;
      while (text.size() < kBytes) text += unit;
      EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, true), true), to_valid_utf8(text));
    }
  }
}

struct HostileVocabulary {
  std::string message;
  GgufWriter writer;
};

std::vector<HostileVocabulary> hostile_vocabularies() {
  const auto bpe = [](const std::function<void(TinyVocabulary&)>& change) {
    TinyVocabulary vocabulary = tiny_bpe();
    change(vocabulary);
    return bpe_file(vocabulary);
  };
  const auto spm = [](const std::function<void(TinyVocabulary&)>& change) {
    TinyVocabulary vocabulary = tiny_spm();
    change(vocabulary);
    return spm_file(vocabulary, true);
  };
  const auto key = [](std::string_view name, auto value) {
    return bpe_file(tiny_bpe()).add(name, value);
  };
  return {
      {"tokenizer '' is not supported", GgufWriter()},
      {"tokenizer 't5' is not supported", GgufWriter().add("tokenizer.ggml.model", "t5")},
      {"tokenizer 'a?b' is", GgufWriter().add("tokenizer.ggml.model", "a\nb")},
      {"vocabulary is missing", GgufWriter().add("tokenizer.ggml.model", "gpt2")},
      {"pre-tokenizer 'x' is not supported", bpe_file(tiny_bpe(), "x")},
      {"merges are missing",
       GgufWriter()
           .add("tokenizer.ggml.model", "gpt2")
           .add_array("tokenizer.ggml.tokens", std::vector<std::string>{"a"})},
      {"scores are missing",
       GgufWriter()
           .add("tokenizer.ggml.model", "llama")
           .add_array("tokenizer.ggml.tokens", std::vector<std::string>{"a"})},
      {"vocabulary is missing", bpe([](auto& v) { v = {}; })},
      {"token_type has 269 entries for 270", bpe([](auto& v) { v.types.pop_back(); })},
      {"token 3 has unknown type 7", bpe([](auto& v) { v.types[3] = 7; })},
      {"token 3 has unknown type -1", bpe([](auto& v) { v.types[3] = -1; })},
      {"token 3 is a byte token", bpe([](auto& v) { v.types[3] = 6; })},
      {"merge 1 has no space", bpe([](auto& v) { v.merges[1] = "ab"; })},
      {"merge 1 has no space", bpe([](auto& v) { v.merges[1] = ""; })},
      {"merge 1 names", bpe([](auto& v) { v.merges[1] = "a nothere"; })},
      {"merge 1 names", bpe([](auto& v) { v.merges[1] = "a "; })},
      {"merge 1 names", bpe([](auto& v) { v.merges[1] = "c a"; })},
      {"merge 1 names", bpe([](auto& v) { v.merges[1] = "< |im_end|>"; })},
      {"scores has 278 entries for 279", spm([](auto& v) { v.scores.pop_back(); })},
      {"no number", spm([](auto& v) { v.scores[5] = std::numeric_limits<float>::quiet_NaN(); })},
      {"bos_token_id is 270, outside", key("tokenizer.ggml.bos_token_id", uint32_t{270})},
      {"eos_token_id is 4294967295, out", key("tokenizer.ggml.eos_token_id", uint32_t{0xffffffff})},
      {"eot_token_id' is negative", key("tokenizer.ggml.eot_token_id", int32_t{-1})},
      {"add_bos_token' is not a bool", key("tokenizer.ggml.add_bos_token", uint32_t{1})},
  };
}

TEST(Tokenizer, HostileVocabulariesEndInOneLine) {
  for (const HostileVocabulary& hostile : hostile_vocabularies()) {
    try {
      make(hostile.writer);
      ADD_FAILURE() << "accepted: " << hostile.message;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kModelFile);
      EXPECT_THAT(error.what(), testing::StartsWith("t.gguf: "));
      EXPECT_THAT(error.what(), HasSubstr(hostile.message));
    }
  }
}

TEST(Tokenizer, EveryFlippedByteOfTheFileWorksOrIsAnError) {
  for (const GgufWriter& writer : {bpe_file(tiny_bpe()), spm_file(tiny_spm(), true)}) {
    const std::vector<std::byte> bytes = writer.bytes();
    for (size_t at = 0; at < bytes.size(); ++at) {
      std::vector<std::byte> broken = bytes;
      broken[at] ^= std::byte{0x11};
      try {
        const Tokenizer tokenizer(GgufFile::from_bytes(broken, "t.gguf"));
        for (const TokenId id : tokenizer.encode("ab abc</s><|im_end|> \xc3\xa9", true)) {
          EXPECT_LT(id, tokenizer.size());
          tokenizer.piece(id);
        }
      } catch (const Error&) {
      }
    }
  }
}

}  // namespace
}  // namespace pagezip
