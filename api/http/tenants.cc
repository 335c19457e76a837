#include "api/http/tenants.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <sstream>

#include "base/error.h"

namespace pagezip::http {
namespace {

constexpr size_t kKeyBytesMin = 8;

[[noreturn]] void fail(const std::string& file, int line, const std::string& why) {
  throw Error(ErrorKind::kUsage, fmt::format("{}, line {}: {}", file, line, why));
}

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, at);) {
    if (!part.empty()) {
      parts.push_back(part);
    }
  }
  return parts;
}

std::optional<int64_t> number_of(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value > 0 &&
                 value <= (int64_t{1} << 40)
             ? std::optional(value)
             : std::nullopt;
}

void read_limit(const std::string& word, Tenant& tenant, const std::string& file, int line) {
  const size_t equals = word.find('=');
  const std::string name = word.substr(0, equals);
  const std::string value = equals == std::string::npos ? "" : word.substr(equals + 1);
  const std::optional<int64_t> number = number_of(value);
  if (name == "groups" && !value.empty()) {
    tenant.groups = split(value, ',');
  } else if (name == "kv-mib" && number) {
    tenant.kv_bytes_max = *number << 20;
  } else if (name == "per-minute" && number) {
    tenant.per_minute = static_cast<double>(*number);
  } else {
    fail(file, line, "after the key come groups=A,B, kv-mib=N and per-minute=N");
  }
}

}  // namespace

void Tenants::load(const std::string& file) {
  std::ifstream in(file);
  if (!in) {
    throw Error(ErrorKind::kUsage, file + ": the API keys can't be read");
  }
  Tenants fresh;
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    std::istringstream words(line.substr(0, line.find('#')));
    Tenant tenant;
    std::string key;
    if (!(words >> tenant.name)) {
      continue;
    }
    if (!(words >> key) || key.size() < kKeyBytesMin) {
      fail(file, number, fmt::format("a key has at least {} characters", kKeyBytesMin));
    }
    if (!is_plain_text(tenant.name, DocumentListing::kScopeBytesMax)) {
      fail(file, number, "the tenant's name is too long");
    }
    for (std::string word; words >> word;) {
      read_limit(word, tenant, file, number);
    }
    fresh.add_key(key, std::move(tenant));
  }
  if (fresh.keys_.empty()) {
    throw Error(ErrorKind::kUsage, file + ": there is no API key in it");
  }
  keys_ = std::move(fresh.keys_);
}

Tenants::Digest Tenants::digest(std::string_view key) {
  Digest digest{};
  unsigned int size = 0;
  if (EVP_Digest(key.data(), key.size(), digest.data(), &size, EVP_sha256(), nullptr) != 1) {
    throw Error(ErrorKind::kRuntime, "SHA-256 is not there");
  }
  return digest;
}

void Tenants::add_key(std::string_view key, Tenant tenant) {
  keys_.emplace_back(digest(key), std::move(tenant));
}

void Tenants::set_admin_key(std::string_view key) { admin_ = digest(key); }

const Tenant* Tenants::find(std::optional<std::string_view> key) const {
  if (keys_.empty()) {
    return &everybody_;
  }
  if (!key) {
    return nullptr;
  }
  // All are compared, however early one fits.
  const Digest given = digest(*key);
  const Tenant* found = nullptr;
  for (const auto& [known, tenant] : keys_) {
    if (CRYPTO_memcmp(known.data(), given.data(), given.size()) == 0) {
      found = &tenant;
    }
  }
  return found;
}

bool Tenants::is_admin(std::optional<std::string_view> key) const {
  if (!admin_) {
    return find(key) != nullptr;
  }
  if (!key) {
    return false;
  }
  const Digest given = digest(*key);
  return CRYPTO_memcmp(admin_->data(), given.data(), given.size()) == 0;
}

std::chrono::milliseconds Tenants::admit(const Tenant& tenant, Clock::time_point now) {
  if (tenant.per_minute <= 0) {
    return {};
  }
  const auto [found, fresh] = buckets_.try_emplace(tenant.name, Bucket{tenant.per_minute, now});
  Bucket& bucket = found->second;
  const double seconds = std::chrono::duration<double>(now - bucket.filled).count();
  bucket.tokens = std::min(tenant.per_minute, bucket.tokens + seconds * tenant.per_minute / 60);
  bucket.filled = now;
  if (bucket.tokens >= 1) {
    bucket.tokens -= 1;
    return {};
  }
  return std::chrono::milliseconds(
      static_cast<int64_t>(std::ceil((1 - bucket.tokens) * 60'000 / tenant.per_minute)));
}

}  // namespace pagezip::http
