// The parts of a request's first line and headers that clients can get wrong.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "api/http/exchange.h"

namespace pagezip::http {

/// Fills path and query. Throws ApiError(400) for broken percent signs, control characters and
/// bytes that are not UTF-8.
void parse_target(std::string_view target, RequestHead& head);

/// `given` if it may be echoed (at most 128 letters, digits, '.', '_', '-'), else a new one.
std::string request_id(std::optional<std::string_view> given);
std::string make_request_id();
/// 22 characters that nobody can guess, behind a prefix such as "doc_".
std::string make_random_id(std::string_view prefix);

std::string lower(std::string_view text);

}  // namespace pagezip::http
