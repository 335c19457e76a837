// Listens, and runs all connections on one thread. Knows nothing of models.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "api/http/connection.h"
#include "api/http/options.h"

namespace pagezip::http {

class Server {
 public:
  /// Binds, so that a port that is taken is known at once: throws Error(kOutput). Throws
  /// Error(kUsage) for certificates that can't be read.
  Server(asio::io_context& io, const ListenOptions& listen, ConnectionOptions connections);

  /// Accepts from now on.
  void start();
  /// Accepts no more. Connections go on.
  void stop_listening();
  /// Reads certificate and key again, for connections to come. Throws Error(kUsage), and goes on
  /// with the old ones.
  void reload_certificate();

  size_t connections() const { return connections_; }
  /// "http://127.0.0.1:8080", one for each host.
  std::vector<std::string> urls() const;

 private:
  asio::awaitable<void> accept(asio::ip::tcp::acceptor& acceptor);

  asio::io_context& io_;
  ListenOptions listen_;
  ConnectionOptions options_;
  std::vector<asio::ip::tcp::acceptor> acceptors_;
  std::shared_ptr<asio::ssl::context> tls_;  // null: plain
  size_t connections_ = 0;
};

}  // namespace pagezip::http
