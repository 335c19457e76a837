// The border between C++ and C: exceptions become statuses, and versioned structs are read.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <string>

#include "api/pagezip.h"
#include "base/error.h"

namespace pagezip::c_api {

/// Remembers `message` for pagezip_last_error() of this thread, and returns `status`. Doesn't throw
/// and doesn't allocate: a long message is cut.
pagezip_status fail(pagezip_status status, const char* message) noexcept;

/// Throws Error(kUsage, message) unless `condition`.
inline void require(bool condition, const char* message) {
  if (!condition) {
    throw Error(ErrorKind::kUsage, message);
  }
}

/// Runs the body of an entry. The body returns a status, or throws.
template <typename Body>
pagezip_status guarded(const Body& body) noexcept {
  try {
    return body();
  } catch (const Error& error) {
    return fail(static_cast<pagezip_status>(error.kind()), error.what());
  } catch (const std::bad_alloc&) {
    return fail(PAGEZIP_OUT_OF_MEMORY, "the host has no memory left");
  } catch (const std::exception& error) {
    return fail(PAGEZIP_FAILED, error.what());
  } catch (...) {
    return fail(PAGEZIP_FAILED, "unknown exception");
  }
}

/// A caller's struct as this library knows it. Throws Error(kUsage) for a null pointer, for a size
/// that can't be, and for fields from the future that aren't 0.
template <typename T>
T read_struct(const T* from, const char* name) {
  size_t size = 0;
  if (from != nullptr) {
    std::memcpy(&size, from, sizeof size);
  }
  if (size < sizeof size) {
    throw Error(ErrorKind::kUsage, std::string(name) + " is null or has no size");
  }
  T known{};
  std::memcpy(&known, from, std::min(size, sizeof known));
  const auto* bytes = reinterpret_cast<const unsigned char*>(from);
  if (size > sizeof known &&
      std::any_of(bytes + sizeof known, bytes + size, [](unsigned char c) { return c != 0; })) {
    throw Error(ErrorKind::kUsage,
                std::string(name) + " has fields that this library doesn't know");
  }
  known.size = sizeof known;
  return known;
}

/// A caller's enum as a number: it may be none of the enum's values, and C++ must not look at it as
/// one then.
template <typename Enum>
int32_t number_of(const Enum& value) {
  static_assert(sizeof(Enum) == sizeof(int32_t));
  int32_t number = 0;
  std::memcpy(&number, &value, sizeof number);
  return number;
}

/// Fills a caller's struct as far as it knows the fields. `to` was initialised with its size.
template <typename T>
void write_struct(T* to, const T& from, const char* name) {
  const size_t size = to == nullptr ? 0 : to->size;
  if (size < sizeof size) {
    throw Error(ErrorKind::kUsage, std::string(name) + " is null or has no size");
  }
  std::memcpy(to, &from, std::min(size, sizeof from));
  to->size = size;
}

}  // namespace pagezip::c_api
