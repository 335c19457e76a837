// One TCP connection that speaks HTTP/1.1: reads requests one after the other, hands each to the
// handler, and bounds what a client can cost. Everything that knows Boost.Beast is behind this.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <chrono>
#include <functional>
#include <memory>

#include "api/http/exchange.h"
#include "api/http/options.h"

namespace pagezip::http {

struct ConnectionOptions {
  ConnectionLimits limits;
  /// Answers one request. What it throws is answered too.
  std::function<asio::awaitable<void>(Exchange&)> handle;
  /// A request is over, however it ended.
  std::function<void(const Exchange&, std::chrono::microseconds)> done;
  /// False: replies say "Connection: close".
  std::function<bool()> keep_alive;
};

/// Serves the socket until it closes. Never throws. `tls` may be null; `options` outlive it.
asio::awaitable<void> serve_connection(asio::ip::tcp::socket socket,
                                       std::shared_ptr<asio::ssl::context> tls,
                                       const ConnectionOptions& options);

/// For one client too many: 503 and the end.
asio::awaitable<void> refuse_connection(asio::ip::tcp::socket socket);

}  // namespace pagezip::http
