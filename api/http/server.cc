#include "api/http/server.h"

#include <fmt/format.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <tuple>

#include "base/error.h"

namespace pagezip::http {
namespace {

using Tcp = asio::ip::tcp;
using boost::system::error_code;

constexpr auto kNoThrow = asio::as_tuple(asio::use_awaitable);

std::shared_ptr<asio::ssl::context> load_certificate(const ListenOptions& listen) {
  if (listen.certificate_file.empty()) {
    return nullptr;
  }
  auto tls = std::make_shared<asio::ssl::context>(asio::ssl::context::tls_server);
  tls->set_options(asio::ssl::context::no_tlsv1 | asio::ssl::context::no_tlsv1_1);
  const auto load = [](const std::string& file, const auto& use) {
    try {
      use(file);
    } catch (const boost::system::system_error& error) {
      throw Error(ErrorKind::kUsage, fmt::format("{}: {}", file, error.code().message()));
    }
  };
  load(listen.certificate_file,
       [&](const std::string& file) { tls->use_certificate_chain_file(file); });
  load(listen.key_file,
       [&](const std::string& file) { tls->use_private_key_file(file, asio::ssl::context::pem); });
  return tls;
}

Tcp::acceptor bind(asio::io_context& io, const std::string& host, uint16_t port) {
  error_code error;
  Tcp::resolver resolver(io);
  const auto found = resolver.resolve(host, std::to_string(port), Tcp::resolver::passive, error);
  if (error || found.empty()) {
    throw Error(ErrorKind::kOutput, fmt::format("can't listen on {}: {}", host, error.message()));
  }
  const Tcp::endpoint endpoint = found.begin()->endpoint();
  Tcp::acceptor acceptor(io);
  try {
    acceptor.open(endpoint.protocol());
    acceptor.set_option(Tcp::acceptor::reuse_address(true));
    acceptor.bind(endpoint);
    acceptor.listen();
  } catch (const boost::system::system_error& failed) {
    throw Error(ErrorKind::kOutput,
                fmt::format("can't listen on {}:{}: {}", host, port, failed.code().message()));
  }
  return acceptor;
}

}  // namespace

Server::Server(asio::io_context& io, const ListenOptions& listen, ConnectionOptions connections)
    : io_(io), listen_(listen), options_(std::move(connections)), tls_(load_certificate(listen)) {
  for (const std::string& host : listen.hosts) {
    acceptors_.push_back(bind(io, host, listen_.port));
    // All hosts get the port that the first one was given.
    listen_.port = acceptors_.back().local_endpoint().port();
  }
}

void Server::start() {
  for (Tcp::acceptor& acceptor : acceptors_) {
    asio::co_spawn(io_, accept(acceptor), asio::detached);
  }
}

void Server::stop_listening() {
  for (Tcp::acceptor& acceptor : acceptors_) {
    error_code ignored;
    std::ignore = acceptor.close(ignored);
  }
}

void Server::reload_certificate() { tls_ = load_certificate(listen_); }

std::vector<std::string> Server::urls() const {
  std::vector<std::string> urls;
  for (const std::string& host : listen_.hosts) {
    const bool is_v6 = host.find(':') != std::string::npos;
    urls.push_back(fmt::format("{}://{}{}{}:{}", tls_ == nullptr ? "http" : "https",
                               is_v6 ? "[" : "", host, is_v6 ? "]" : "", listen_.port));
  }
  return urls;
}

asio::awaitable<void> Server::accept(Tcp::acceptor& acceptor) {
  while (acceptor.is_open()) {
    auto [error, socket] = co_await acceptor.async_accept(kNoThrow);
    if (error == asio::error::operation_aborted || error == asio::error::bad_descriptor) {
      co_return;
    }
    if (error) {
      // Out of file descriptors: they come back when connections end.
      asio::steady_timer pause(io_, std::chrono::milliseconds(50));
      co_await pause.async_wait(kNoThrow);
      continue;
    }
    if (connections_ >= listen_.connections_max) {
      asio::co_spawn(io_, refuse_connection(std::move(socket)), asio::detached);
      continue;
    }
    ++connections_;
    asio::co_spawn(io_, serve_connection(std::move(socket), tls_, options_),
                   [this](const std::exception_ptr&) { --connections_; });
  }
}

}  // namespace pagezip::http
