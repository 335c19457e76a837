#include "api/http/idempotency_keys.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>

#include "api/http/api_error.h"

namespace pagezip::http {

IdempotencyKeys::BodyHash IdempotencyKeys::hash_of(std::string_view body) {
  const XXH128_hash_t hash = XXH3_128bits(body.data(), body.size());
  return {hash.high64, hash.low64};
}

std::optional<std::string> IdempotencyKeys::key_of(const RequestHead& head) {
  const auto key = head.header("idempotency-key");
  if (!key) {
    return std::nullopt;
  }
  const bool is_visible =
      std::all_of(key->begin(), key->end(), [](char c) { return c > ' ' && c < 0x7f; });
  if (key->empty() || key->size() > kBytesMax || !is_visible) {
    throw ApiError(
        400, "invalid_value",
        fmt::format("Idempotency-Key must have 1 to {} visible ASCII characters", kBytesMax),
        "Idempotency-Key");
  }
  return std::string(*key);
}

void IdempotencyKeys::forget_oldest() {
  const std::shared_ptr<Use> oldest = by_age_.front();
  by_age_.pop_front();
  const auto known = uses_.find(oldest->name);
  if (known != uses_.end() && known->second == oldest) {
    uses_.erase(known);
  }
}

IdempotencyKeys::Claim::Claim(IdempotencyKeys& keys, const std::string& tenant,
                              const std::string& key, BodyHash body, int64_t now)
    : keys_(keys) {
  while (!keys.by_age_.empty() && now - keys.by_age_.front()->since >= kLifeUs) {
    keys.forget_oldest();
  }
  std::shared_ptr<Use>& known = keys.uses_[{tenant, key}];
  if (known == nullptr) {
    known = std::make_shared<Use>(Use{{tenant, key}, body, now, "", false});
    use_ = known;
    keys.by_age_.push_back(use_);
    if (keys.by_age_.size() > kKeysMax) {
      keys.forget_oldest();
    }
    return;
  }
  if (known->body != body) {
    throw ApiError(409, "idempotency_key_reused", "this Idempotency-Key was used with another body",
                   "Idempotency-Key");
  }
  if (known->document.empty()) {
    throw ApiError(409, "idempotency_key_in_use",
                   "the first request with this Idempotency-Key is under way", "Idempotency-Key")
        .with_header("Retry-After", "1");
  }
  use_ = known;
}

IdempotencyKeys::Claim::~Claim() {
  const auto known = keys_.uses_.find(use_->name);
  if (use_->document.empty() && known != keys_.uses_.end() && known->second == use_) {
    keys_.uses_.erase(known);
  }
}

void IdempotencyKeys::Claim::settle(const std::string& document, bool stream) {
  use_->document = document;
  use_->stream = stream;
}

}  // namespace pagezip::http
