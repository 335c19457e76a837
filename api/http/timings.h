// How long a request took.
#pragma once

#include <fmt/format.h>

#include <boost/json/object.hpp>
#include <cstdint>
#include <string>

namespace pagezip::http {

struct Timings {
  int64_t cached = 0;  // tokens of the prompt that were there
  int64_t prompt = 0;  // tokens of it that were computed
  double prompt_ms = 0;
  int64_t predicted = 0;  // tokens
  double predicted_ms = 0;
};

/// In the words of llama-server.
inline boost::json::object timings_json(const Timings& t) {
  const auto per = [](double ms, int64_t n) { return n > 0 ? ms / static_cast<double>(n) : 0; };
  const auto rate = [](double ms, int64_t n) {
    return ms > 0 ? 1000 * static_cast<double>(n) / ms : 0;
  };
  boost::json::object timings;
  timings["cache_n"] = t.cached;
  timings["prompt_n"] = t.prompt;
  timings["prompt_ms"] = t.prompt_ms;
  timings["prompt_per_token_ms"] = per(t.prompt_ms, t.prompt);
  timings["prompt_per_second"] = rate(t.prompt_ms, t.prompt);
  timings["predicted_n"] = t.predicted;
  timings["predicted_ms"] = t.predicted_ms;
  timings["predicted_per_token_ms"] = per(t.predicted_ms, t.predicted);
  timings["predicted_per_second"] = rate(t.predicted_ms, t.predicted);
  return timings;
}

/// For the header Server-Timing (W3C), which browsers and proxies show.
inline std::string server_timing(const Timings& t) {
  return fmt::format("prompt;dur={:.1f}, decode;dur={:.1f}", t.prompt_ms, t.predicted_ms);
}

}  // namespace pagezip::http
