#include "engine/utf8.h"

#include <algorithm>

namespace pagezip {
namespace {

struct LeadByte {
  size_t bytes;         // of the whole character; 0 if no character starts so
  uint8_t second_low;   // bounds of the second byte: they exclude overlong forms, surrogates
  uint8_t second_high;  // and values above U+10FFFF (Unicode, table 3-7)
};

LeadByte lead_byte(uint8_t lead) {
  if (lead < 0x80) return {1, 0, 0};
  if (lead < 0xc2) return {0, 0, 0};
  if (lead < 0xe0) return {2, 0x80, 0xbf};
  if (lead < 0xf0) {
    return {3, static_cast<uint8_t>(lead == 0xe0 ? 0xa0 : 0x80),
            static_cast<uint8_t>(lead == 0xed ? 0x9f : 0xbf)};
  }
  if (lead < 0xf5) {
    return {4, static_cast<uint8_t>(lead == 0xf0 ? 0x90 : 0x80),
            static_cast<uint8_t>(lead == 0xf4 ? 0x8f : 0xbf)};
  }
  return {0, 0, 0};
}

}  // namespace

Utf8Char decode_utf8(std::string_view text) {
  const auto byte = [text](size_t i) { return static_cast<uint8_t>(text[i]); };
  const LeadByte lead = lead_byte(byte(0));
  if (lead.bytes == 0) return {Utf8Status::kInvalid, 0, 1};
  if (lead.bytes == 1) return {Utf8Status::kValid, byte(0), 1};
  uint32_t code_point = byte(0) & (0x7fu >> lead.bytes);
  for (size_t i = 1; i < lead.bytes; ++i) {
    if (i == text.size()) return {Utf8Status::kIncomplete, 0, i};
    const uint8_t low = i == 1 ? lead.second_low : 0x80;
    const uint8_t high = i == 1 ? lead.second_high : 0xbf;
    if (byte(i) < low || byte(i) > high) return {Utf8Status::kInvalid, 0, i};
    code_point = code_point << 6 | (byte(i) & 0x3fu);
  }
  return {Utf8Status::kValid, code_point, lead.bytes};
}

void append_utf8(std::string& target, uint32_t code_point) {
  const auto tail = [code_point](int shift) {
    return static_cast<char>(0x80 | (code_point >> shift & 0x3f));
  };
  if (code_point < 0x80) {
    target += static_cast<char>(code_point);
  } else if (code_point < 0x800) {
    target += static_cast<char>(0xc0 | code_point >> 6);
    target += tail(0);
  } else if (code_point < 0x10000) {
    target += static_cast<char>(0xe0 | code_point >> 12);
    target += tail(6);
    target += tail(0);
  } else {
    target += static_cast<char>(0xf0 | code_point >> 18);
    target += tail(12);
    target += tail(6);
    target += tail(0);
  }
}

std::string to_valid_utf8(std::string_view text) {
  std::string valid;
  valid.reserve(text.size());
  while (!text.empty()) {
    const size_t good = valid_utf8_bytes(text);
    valid += text.substr(0, good);
    text.remove_prefix(good);
    if (text.empty()) break;
    valid += kReplacementCharacter;
    text.remove_prefix(decode_utf8(text).bytes);
  }
  return valid;
}

size_t valid_utf8_bytes(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const Utf8Char next = decode_utf8(text.substr(at));
    if (next.status != Utf8Status::kValid) break;
    at += next.bytes;
  }
  return at;
}

int64_t count_characters(std::string_view utf8) {
  return std::count_if(utf8.begin(), utf8.end(),
                       [](char c) { return (static_cast<uint8_t>(c) & 0xc0) != 0x80; });
}

std::string to_printable(std::string_view text, size_t max_bytes) {
  std::string printable(text.substr(0, max_bytes));
  for (char& c : printable) {
    if (c < 0x20 || c > 0x7e) c = '?';
  }
  return text.size() > max_bytes ? printable + "..." : printable;
}

}  // namespace pagezip
