// UTF-8 as it comes from outside: possibly broken, possibly cut in the middle of a character.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace pagezip {

enum class Utf8Status : uint8_t {
  kValid,
  kInvalid,     // no continuation of the text can make this a character
  kIncomplete,  // the text ends inside a character
};

struct Utf8Char {
  Utf8Status status;
  uint32_t code_point;  // only if valid
  size_t bytes;         // of the character, or of the broken start of one; at least 1
};

/// The character at the start of `text`. Overlong forms, surrogates and values above U+10FFFF are
/// invalid. REQUIRES: text is not empty.
Utf8Char decode_utf8(std::string_view text);

void append_utf8(std::string& target, uint32_t code_point);

/// The text with each broken part replaced by U+FFFD.
std::string to_valid_utf8(std::string_view text);

/// Bytes of the longest start of `text` that is valid UTF-8.
size_t valid_utf8_bytes(std::string_view text);
inline bool is_valid_utf8(std::string_view text) { return valid_utf8_bytes(text) == text.size(); }

/// Characters (code points) of valid UTF-8.
int64_t count_characters(std::string_view utf8);

/// Untrusted text for an error line: cut after `max_bytes`, all but printable ASCII as '?'.
std::string to_printable(std::string_view text, size_t max_bytes = 64);

inline constexpr std::string_view kReplacementCharacter = "\xef\xbf\xbd";

}  // namespace pagezip
