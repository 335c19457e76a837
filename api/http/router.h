// Which handler serves a path.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "api/http/exchange.h"

namespace pagezip::http {

/// Who may call it.
enum class Access : uint8_t {
  kPublic,  // anybody: liveness
  kUser,    // an API key, where there are any
  kAdmin,   // the admin key, where there is one
};

/// The parts of the path that stood for {names}, in order.
using PathParts = std::vector<std::string>;
using Handler = std::function<asio::awaitable<void>(Exchange&, const PathParts&)>;

struct Route {
  std::string method;
  std::string pattern;  // "/v1/documents/{id}"
  Access access = Access::kUser;
  Handler handler;
};

class Router {
 public:
  void add(Route route) { routes_.push_back(std::move(route)); }

  struct Match {
    const Route* route = nullptr;  // null: no such path, or not with this method
    PathParts parts;
    std::string allow;  // methods of this path, for 405 and OPTIONS; "" if there is none
  };
  /// HEAD finds what GET has. The route written first wins.
  Match find(std::string_view method, std::string_view path) const;
  const std::vector<Route>& routes() const { return routes_; }

 private:
  std::vector<Route> routes_;
};

}  // namespace pagezip::http
