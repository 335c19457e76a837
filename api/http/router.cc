#include "api/http/router.h"

#include <optional>
#include <set>

namespace pagezip::http {
namespace {

std::string_view take_part(std::string_view& path) {
  const size_t end = std::min(path.find('/'), path.size());
  const std::string_view part = path.substr(0, end);
  path.remove_prefix(std::min(end + 1, path.size()));
  return part;
}

std::optional<PathParts> match(std::string_view pattern, std::string_view path) {
  PathParts parts;
  while (!pattern.empty() || !path.empty()) {
    if (pattern.empty() || path.empty()) {
      return std::nullopt;
    }
    const bool more_pattern = pattern.find('/') != std::string_view::npos;
    const bool more_path = path.find('/') != std::string_view::npos;
    const std::string_view wanted = take_part(pattern);
    const std::string_view found = take_part(path);
    if (more_pattern != more_path) {
      return std::nullopt;
    }
    if (wanted.size() > 2 && wanted.front() == '{') {
      if (found.empty()) {
        return std::nullopt;
      }
      parts.emplace_back(found);
    } else if (wanted != found) {
      return std::nullopt;
    }
  }
  return parts;
}

}  // namespace

Router::Match Router::find(std::string_view method, std::string_view path) const {
  const std::string_view wanted = method == "HEAD" ? "GET" : method;
  Match result;
  std::set<std::string> methods;
  for (const Route& route : routes_) {
    std::optional<PathParts> parts = match(route.pattern, path);
    if (!parts) {
      continue;
    }
    if (route.method == wanted && result.route == nullptr) {
      result.route = &route;
      result.parts = std::move(*parts);
    }
    methods.insert(route.method);
    if (route.method == "GET") {
      methods.insert("HEAD");
    }
  }
  for (const std::string& each : methods) {
    result.allow += (result.allow.empty() ? "" : ", ") + each;
  }
  return result;
}

}  // namespace pagezip::http
