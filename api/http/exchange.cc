#include "api/http/exchange.h"

#include <fmt/format.h>

#include <algorithm>

#include "api/http/api_error.h"

namespace pagezip::http {
namespace {

std::optional<std::string_view> find(const std::vector<Header>& in, std::string_view name) {
  const auto found =
      std::find_if(in.begin(), in.end(), [&](const Header& each) { return each.first == name; });
  return found == in.end() ? std::nullopt : std::optional<std::string_view>(found->second);
}

}  // namespace

std::optional<std::string_view> RequestHead::header(std::string_view name) const {
  return find(headers, name);
}

std::optional<std::string_view> RequestHead::query_value(std::string_view name) const {
  return find(query, name);
}

asio::awaitable<std::string> Exchange::read_part(uint64_t max) {
  const auto check = [max](uint64_t size) {
    if (size > max) {
      throw ApiError(413, "body_too_large",
                     fmt::format("the body has more than {} bytes, which is the limit", max));
    }
  };
  check(head_.body_size.value_or(0));
  std::string part = co_await read_some();
  body_bytes_ += part.size();
  check(body_bytes_);
  co_return part;
}

asio::awaitable<std::string> Exchange::read_body(uint64_t max) {
  std::string body;
  while (true) {
    const std::string part = co_await read_part(max);
    if (part.empty()) {
      co_return body;
    }
    body += part;
  }
}

}  // namespace pagezip::http
