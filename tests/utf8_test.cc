#include "engine/utf8.h"

#include <gtest/gtest.h>

namespace pagezip {
namespace {

TEST(Utf8, EveryCodePointSurvivesTheRoundTrip) {
  for (uint32_t code_point = 0; code_point <= 0x10ffff; ++code_point) {
    std::string text;
    append_utf8(text, code_point);
    const Utf8Char decoded = decode_utf8(text);
    if (code_point >= 0xd800 && code_point <= 0xdfff) {
      ASSERT_EQ(decoded.status, Utf8Status::kInvalid) << code_point;
      continue;
    }
    ASSERT_EQ(decoded.status, Utf8Status::kValid) << code_point;
    ASSERT_EQ(decoded.code_point, code_point);
    ASSERT_EQ(decoded.bytes, text.size());
    for (size_t cut = 1; cut < text.size(); ++cut) {
      ASSERT_EQ(decode_utf8(text.substr(0, cut)).status, Utf8Status::kIncomplete) << code_point;
    }
  }
}

TEST(Utf8, BrokenPartsBecomeReplacementCharacters) {
  const std::string u = "\xef\xbf\xbd";
  const std::pair<std::string, std::string> rows[] = {
      {"ok", "ok"},
      {"\x80", u},                          // a continuation alone
      {"a\xff\xfe!", "a" + u + u + "!"},    // never in UTF-8
      {"\xc0\xaf", u + u},                  // overlong '/'
      {"\xe0\x80\xaf", u + u + u},          // overlong '/'
      {"\xed\xa0\x80", u + u + u},          // a surrogate
      {"\xf4\x90\x80\x80", u + u + u + u},  // above U+10FFFF
      {"\xe2\x82", u},                      // cut off
      {"\xe2\x82x", u + "x"},
      {"\xf0\x9f\x98\xf0\x9f\x98\x80", u + "\xf0\x9f\x98\x80"},
  };
  for (const auto& [broken, valid] : rows) EXPECT_EQ(to_valid_utf8(broken), valid);
  EXPECT_EQ(valid_utf8_bytes("ab\xe2\x82"), 2u);
}

TEST(Utf8, CountsCharacters) {
  EXPECT_EQ(count_characters(""), 0);
  EXPECT_EQ(count_characters("a\xc3\xbc\xe2\x82\xac\xf0\x9f\x98\x80"), 4);
}

TEST(Utf8, PrintableTextIsShortAscii) {
  EXPECT_EQ(to_printable("a b~"), "a b~");
  EXPECT_EQ(to_printable("a\n\x7f\xc3\xa9"), "a????");
  EXPECT_EQ(to_printable(std::string(65, 'x')), std::string(64, 'x') + "...");
}

}  // namespace
}  // namespace pagezip
