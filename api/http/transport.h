// A byte stream with time limits, plain or with TLS: what a connection stands on.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <chrono>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

namespace pagezip::http {

namespace asio = boost::asio;

/// One operation at a time. Errors are values: the other side can fail at any moment.
class Transport {
 public:
  using Deadline = std::chrono::steady_clock::time_point;
  struct Result {
    boost::system::error_code error;
    bool timed_out = false;
    size_t bytes = 0;
    explicit operator bool() const { return !error; }
  };

  virtual ~Transport() = default;
  /// Before anything else.
  virtual asio::awaitable<Result> handshake(Deadline deadline) = 0;
  virtual asio::awaitable<Result> read_some(std::span<char> into, Deadline deadline) = 0;
  /// All of it.
  virtual asio::awaitable<Result> write(std::string_view text, Deadline deadline) = 0;
  /// Says goodbye and sends nothing more; what comes in can still be read.
  virtual asio::awaitable<void> shut_down(Deadline deadline) = 0;
  /// As read_some(), below TLS: for what nobody wants to know any more.
  virtual asio::awaitable<Result> discard_some(std::span<char> into, Deadline deadline) = 0;
  virtual void close() = 0;
  /// Whether the other side has closed its half.
  virtual bool peer_closed() = 0;
};

/// `tls` may be null: plain then.
std::unique_ptr<Transport> make_transport(asio::ip::tcp::socket socket,
                                          const std::shared_ptr<asio::ssl::context>& tls);

}  // namespace pagezip::http
