// Everything that `pagezip serve` can be told, in range.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/backend.h"
#include "engine/engine.h"

namespace pagezip::http {

struct ConnectionLimits {
  uint32_t header_bytes = 16 << 10;
  size_t headers = 256;
  std::chrono::milliseconds header_time{10'000};  // from its first byte to its last
  std::chrono::milliseconds idle_time{60'000};    // between requests
  std::chrono::milliseconds body_time{120'000};   // of the whole body
  std::chrono::milliseconds write_time{30'000};   // until the system takes what was written
};

struct ListenOptions {
  std::vector<std::string> hosts = {"127.0.0.1"};  // names or addresses
  uint16_t port = 8080;                            // 0: any that is free
  size_t connections_max = 1024;
  std::string certificate_file;  // PEM; empty: no TLS
  std::string key_file;
};

struct ServeOptions {
  std::string model;       // file
  std::string model_name;  // as clients call it; "": the file's name without its ending
  std::optional<std::string> chat_template;  // its text; nothing: the model's own
  int threads = 1;
  Backend backend = Backend::kCpu;
  ActivationType activations = ActivationType::kQ8;
  int64_t pool_mib = 0;       // 0: half of the memory that is free, or what the model can use
  EngineOptions engine;       // pool_blocks, identity and provenance are the server's
  double step_target_ms = 0;  // 0: the scheduler's own
  int64_t documents_mib_max = 16'384;  // of files
  double keep_ratio = 0.3;             // of documents that don't say

  ListenOptions listen;
  ConnectionLimits limits;
  int64_t body_mib_max = 32;
  std::string api_key;       // of one tenant, "default"
  std::string api_key_file;  // see tenants.h
  std::string admin_key;
  std::vector<std::string> cors_origins;  // "*": any
  bool metrics_vllm = false;
  double ping_interval_s = 30;  // comments in streams that have nothing to say
  double shutdown_s = 30;       // that running streams get
  bool access_log = true;

  uint64_t body_bytes_max() const { return static_cast<uint64_t>(body_mib_max) << 20; }
};

}  // namespace pagezip::http
