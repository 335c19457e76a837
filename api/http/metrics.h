// /metrics: what the engine and the server count, in Prometheus' text format.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "api/http/service.h"

namespace pagezip::http {

/// By status, and how many clients left before their answer.
struct RequestCounts {
  std::map<int, int64_t> by_status;
  int64_t aborted = 0;
};

/// `vllm`: the names of vLLM's metrics too, which gateways scrape.
std::string metrics_text(const EngineStats& stats, const RequestCounts& counts,
                         const Service& service, bool vllm);

}  // namespace pagezip::http
