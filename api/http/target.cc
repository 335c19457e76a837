#include "api/http/target.h"

#include <openssl/rand.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "api/http/api_error.h"
#include "engine/utf8.h"

namespace pagezip::http {
namespace {

bool is_id_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '_' || c == '-';
}

std::string decode(std::string_view text, bool plus_is_space) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%') {
      unsigned value = 0;
      const char* begin = text.data() + i + 1;
      const auto [end, error] = i + 2 < text.size()
                                    ? std::from_chars(begin, begin + 2, value, 16)
                                    : std::from_chars_result{begin, std::errc::invalid_argument};
      if (error != std::errc() || end != begin + 2) {
        throw ApiError(400, "bad_request", "the path has a broken percent sign");
      }
      decoded += static_cast<char>(value);
      i += 2;
    } else {
      decoded += plus_is_space && text[i] == '+' ? ' ' : text[i];
    }
  }
  const bool has_control = std::any_of(decoded.begin(), decoded.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
  });
  if (has_control || !is_valid_utf8(decoded)) {
    throw ApiError(400, "bad_request", "the path has characters that it may not have");
  }
  return decoded;
}

}  // namespace

void parse_target(std::string_view target, RequestHead& head) {
  if (!target.empty() && target.front() != '/' && target != "*") {
    // The form that proxies get: http://host/path.
    const size_t host = target.find("://");
    if (host == std::string_view::npos) {
      throw ApiError(400, "bad_request", "the path doesn't begin with '/'");
    }
    target.remove_prefix(std::min(target.find('/', host + 3), target.size()));
  }
  const size_t mark = std::min(target.find('?'), target.size());
  head.path = decode(target.substr(0, mark), false);
  std::string_view query = target.substr(std::min(mark + 1, target.size()));
  while (!query.empty()) {
    const size_t end = std::min(query.find('&'), query.size());
    const std::string_view field = query.substr(0, end);
    query.remove_prefix(std::min(end + 1, query.size()));
    const size_t equals = std::min(field.find('='), field.size());
    if (!field.empty()) {
      head.query.emplace_back(decode(field.substr(0, equals), true),
                              decode(field.substr(std::min(equals + 1, field.size())), true));
    }
  }
}

std::string request_id(std::optional<std::string_view> given) {
  if (given && !given->empty() && given->size() <= 128 &&
      std::all_of(given->begin(), given->end(), is_id_character)) {
    return std::string(*given);
  }
  return make_request_id();
}

std::string make_request_id() { return make_random_id("req_"); }

std::string make_random_id(std::string_view prefix) {
  static constexpr std::string_view kAlphabet =
      "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_";
  std::array<unsigned char, 22> bytes{};
  if (RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) != 1) {
    throw Error(ErrorKind::kRuntime, "the system gives no random numbers");
  }
  std::string id(prefix);
  for (const unsigned char byte : bytes) {
    id += kAlphabet[byte % kAlphabet.size()];
  }
  return id;
}

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return result;
}

}  // namespace pagezip::http
