// What the fuzz targets share: what an Error must look like, and cutting an input into parts.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/error.h"
#include "tests/fuzz/targets.h"

namespace pagezip::fuzz {

/// Whether `action` ends without an Error. It may throw those of `kinds`, and nothing else.
template <typename Action>
bool accepts(std::initializer_list<ErrorKind> kinds, const Action& action) {
  try {
    action();
    return true;
  } catch (const Error& error) {
    CHECK(std::find(kinds.begin(), kinds.end(), error.kind()) != kinds.end());
    const std::string_view what = error.what();
    CHECK(!what.empty());
    CHECK(std::none_of(what.begin(), what.end(),
                       [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }));
    return false;
  }
}

inline std::string_view text_of(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Cuts off all up to the next `end`, which is dropped; all of it if there is none.
inline std::string_view take_part(std::string_view& text, char end) {
  const size_t at = std::min(text.find(end), text.size());
  const std::string_view part = text.substr(0, at);
  text.remove_prefix(std::min(at + 1, text.size()));
  return part;
}

}  // namespace pagezip::fuzz
