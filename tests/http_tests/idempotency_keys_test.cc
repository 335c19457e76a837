// What takes a day, or ten thousand requests, to see over the wire.
#include "api/http/idempotency_keys.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "api/http/api_error.h"

namespace pagezip::http {
namespace {

using Claim = IdempotencyKeys::Claim;

const IdempotencyKeys::BodyHash kBody = IdempotencyKeys::hash_of("a body");

// Which document the key stands for; it becomes `made` if it is new.
std::string use(IdempotencyKeys& keys, const std::string& key, const std::string& made,
                int64_t now = 0) {
  Claim claim(keys, "tenant", key, kBody, now);
  const std::string before = claim.document();
  if (before.empty() && !made.empty()) claim.settle(made, false);
  return before;
}

TEST(IdempotencyKeys, AreKnownForADay) {
  IdempotencyKeys keys;
  EXPECT_EQ(use(keys, "k", "a", 5), "");
  EXPECT_EQ(use(keys, "k", "b", 5 + IdempotencyKeys::kLifeUs - 1), "a");
  EXPECT_EQ(use(keys, "k", "b", 5 + IdempotencyKeys::kLifeUs), "");
  EXPECT_EQ(use(keys, "k", "c", 5 + IdempotencyKeys::kLifeUs), "b");
}

TEST(IdempotencyKeys, TheOldestGoFirst) {
  IdempotencyKeys keys;
  const auto key = [](size_t i) { return "k" + std::to_string(i); };
  for (size_t i = 0; i < IdempotencyKeys::kKeysMax; ++i) use(keys, key(i), "a");
  EXPECT_EQ(use(keys, key(0), ""), "a");
  use(keys, "another", "a");
  EXPECT_EQ(use(keys, key(1), ""), "a");
  EXPECT_EQ(use(keys, key(0), ""), "");
}

TEST(IdempotencyKeys, StandForOneBodyAndOneRequest) {
  IdempotencyKeys keys;
  const auto status_of = [&](const IdempotencyKeys::BodyHash& body, const std::string& tenant) {
    try {
      const Claim claim(keys, tenant, "k", body, 0);
      return 0;
    } catch (const ApiError& error) {
      return error.status();
    }
  };
  std::optional<Claim> first(std::in_place, keys, "tenant", "k", kBody, 0);
  EXPECT_EQ(status_of(kBody, "tenant"), 409) << "it is under way";
  EXPECT_EQ(status_of(kBody, "another"), 0);
  first.reset();  // it came to nothing
  EXPECT_EQ(use(keys, "k", "a"), "");
  EXPECT_EQ(status_of(kBody, "tenant"), 0);
  EXPECT_EQ(status_of(IdempotencyKeys::hash_of("b body"), "tenant"), 409);
}

// The end of a forgotten request frees no key that somebody else has by now.
TEST(IdempotencyKeys, AForgottenRequestTouchesNoOther) {
  IdempotencyKeys keys;
  std::optional<Claim> slow(std::in_place, keys, "tenant", "k", kBody, 0);
  EXPECT_EQ(use(keys, "k", "a", IdempotencyKeys::kLifeUs), "");
  slow.reset();
  EXPECT_EQ(use(keys, "k", "", IdempotencyKeys::kLifeUs), "a");
}

}  // namespace
}  // namespace pagezip::http
