// Who may call: API keys, what they may use, and how much.
//
// A key file has one tenant a line: its name, its key, and what it may:
//
//   # name   key              limits
//   alice    sk-1234567890    groups=legal,hr kv-mib=2048 per-minute=600
//
// Keys are kept as SHA-256 only, and compared in constant time.
//
// I/O thread only.
#pragma once

#include <array>
#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "paging/document_identity.h"

namespace pagezip::http {

struct Tenant {
  std::string name;
  std::vector<std::string> groups;  // whose documents it may use
  int64_t kv_bytes_max = 0;         // of its documents in memory; 0: no limit
  double per_minute = 0;            // requests; 0: no limit

  Requester requester() const { return {name, groups}; }
};

class Tenants {
 public:
  using Clock = std::chrono::steady_clock;

  /// Without a file everybody is the tenant "default". Throws Error(kUsage) with the line.
  void load(const std::string& file);
  void add_key(std::string_view key, Tenant tenant);
  void set_admin_key(std::string_view key);
  bool open() const { return keys_.empty(); }
  bool has_admin_key() const { return admin_.has_value(); }

  /// Null: no such key. Without keys, everybody is the tenant "default".
  const Tenant* find(std::optional<std::string_view> key) const;
  /// Where there is no admin key, whoever may call at all is an admin.
  bool is_admin(std::optional<std::string_view> key) const;
  /// How long the tenant must wait for its next request; 0: it was let through and counted.
  std::chrono::milliseconds admit(const Tenant& tenant, Clock::time_point now);

 private:
  using Digest = std::array<unsigned char, 32>;
  static Digest digest(std::string_view key);
  struct Bucket {
    double tokens = 0;
    Clock::time_point filled;
  };

  std::vector<std::pair<Digest, Tenant>> keys_;
  std::optional<Digest> admin_;
  Tenant everybody_{"default", {}, 0, 0};
  std::map<std::string, Bucket> buckets_;
};

}  // namespace pagezip::http
