// The header Idempotency-Key: a request that is sent again makes nothing twice.
//
// A key belongs to a tenant, is known for a day, and then, or when there are too many, forgotten,
// the oldest first. Of bodies only hashes are kept. All of it lives in memory only.
//
// I/O thread only, but for hash_of().
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "api/http/exchange.h"

namespace pagezip::http {

class IdempotencyKeys {
 public:
  static constexpr size_t kBytesMax = 255;
  static constexpr size_t kKeysMax = 10'000;
  static constexpr int64_t kLifeUs = int64_t{24} * 3600 * 1'000'000;

  using BodyHash = std::pair<uint64_t, uint64_t>;  // XXH3-128
  static BodyHash hash_of(std::string_view body);
  /// Of a request, if it has one. Throws ApiError(400).
  static std::optional<std::string> key_of(const RequestHead& head);

  class Claim;

 private:
  struct Use {
    std::pair<std::string, std::string> name;  // tenant, key
    BodyHash body;
    int64_t since = 0;
    std::string document;  // "": the first request hasn't made it yet
    bool stream = false;
  };

  void forget_oldest();

  std::map<std::pair<std::string, std::string>, std::shared_ptr<Use>> uses_;
  std::deque<std::shared_ptr<Use>> by_age_;  // the oldest first, those that came to nothing too
};

/// One request with a key. If it ends before settle(), the key is as if it had never been used.
class IdempotencyKeys::Claim {
 public:
  /// Throws ApiError(409) if the key was used with another body, or its first request is still
  /// under way.
  Claim(IdempotencyKeys& keys, const std::string& tenant, const std::string& key, BodyHash body,
        int64_t now);
  ~Claim();
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;

  /// What the first request made; "": this is the first.
  const std::string& document() const { return use_->document; }
  /// Whether the first reply was a stream of events.
  bool stream() const { return use_->stream; }
  void settle(const std::string& document, bool stream);

 private:
  IdempotencyKeys& keys_;
  std::shared_ptr<Use> use_;
};

}  // namespace pagezip::http
