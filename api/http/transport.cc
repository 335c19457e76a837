#include "api/http/transport.h"

#include <poll.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <tuple>
#include <type_traits>

namespace pagezip::http {
namespace {

using Socket = asio::ip::tcp::socket;
using TlsStream = asio::ssl::stream<Socket>;
using boost::system::error_code;

constexpr auto kNoThrow = asio::as_tuple(asio::use_awaitable);

// Cancels what a socket waits for when its time is over, and leaves it open: a client that is too
// slow is still told so.
class Alarm {
 public:
  explicit Alarm(Socket& socket) : socket_(socket), timer_(socket.get_executor()) {}

  void set(Transport::Deadline deadline) {
    rang_ = std::make_shared<bool>(false);
    timer_.expires_at(deadline);
    // The socket may be gone when this runs, but then nobody else holds `rang` any more.
    timer_.async_wait([rang = std::weak_ptr<bool>(rang_), this](error_code error) {
      const std::shared_ptr<bool> alive = rang.lock();
      if (!error && alive != nullptr) {
        *alive = true;
        error_code ignored;
        std::ignore = socket_.cancel(ignored);
      }
    });
  }
  /// Whether it rang.
  bool stop() {
    timer_.cancel();
    return *std::exchange(rang_, nullptr);
  }

 private:
  Socket& socket_;
  asio::steady_timer timer_;
  std::shared_ptr<bool> rang_;
};

template <typename Stream>
class StreamTransport : public Transport {
 public:
  // `tls` lives as long as the stream.
  StreamTransport(Stream stream, std::shared_ptr<asio::ssl::context> tls)
      : tls_(std::move(tls)), stream_(std::move(stream)), alarm_(socket()) {}

  asio::awaitable<Result> handshake(Deadline deadline) override {
    if constexpr (std::is_same_v<Stream, TlsStream>) {
      alarm_.set(deadline);
      const auto [error] =
          co_await stream_.async_handshake(asio::ssl::stream_base::server, kNoThrow);
      co_return result(error, 0);
    }
    co_return Result{};
  }
  asio::awaitable<Result> read_some(std::span<char> into, Deadline deadline) override {
    alarm_.set(deadline);
    const auto [error, bytes] =
        co_await stream_.async_read_some(asio::buffer(into.data(), into.size()), kNoThrow);
    co_return result(error, bytes);
  }
  asio::awaitable<Result> write(std::string_view text, Deadline deadline) override {
    alarm_.set(deadline);
    const auto [error, bytes] = co_await asio::async_write(stream_, asio::buffer(text), kNoThrow);
    co_return result(error, bytes);
  }
  asio::awaitable<void> shut_down(Deadline deadline) override {
    if constexpr (std::is_same_v<Stream, TlsStream>) {
      alarm_.set(deadline);
      co_await stream_.async_shutdown(kNoThrow);
      alarm_.stop();
    }
    error_code ignored;
    std::ignore = socket().shutdown(Socket::shutdown_send, ignored);
    co_return;
  }
  asio::awaitable<Result> discard_some(std::span<char> into, Deadline deadline) override {
    alarm_.set(deadline);
    const auto [error, bytes] =
        co_await socket().async_read_some(asio::buffer(into.data(), into.size()), kNoThrow);
    co_return result(error, bytes);
  }
  void close() override {
    error_code ignored;
    std::ignore = socket().close(ignored);
  }
  bool peer_closed() override {
    pollfd poll_it{socket().native_handle(), POLLRDHUP, 0};
    return ::poll(&poll_it, 1, 0) > 0 &&
           (poll_it.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0;
  }

 private:
  Socket& socket() {
    if constexpr (std::is_same_v<Stream, TlsStream>) {
      return stream_.next_layer();
    } else {
      return stream_;
    }
  }
  Result result(error_code error, size_t bytes) {
    const bool rang = alarm_.stop();
    return {error, rang && error == asio::error::operation_aborted, bytes};
  }

  std::shared_ptr<asio::ssl::context> tls_;
  Stream stream_;
  Alarm alarm_;
};

}  // namespace

std::unique_ptr<Transport> make_transport(Socket socket,
                                          const std::shared_ptr<asio::ssl::context>& tls) {
  error_code ignored;
  std::ignore = socket.set_option(asio::ip::tcp::no_delay(true), ignored);
  if (tls == nullptr) {
    return std::make_unique<StreamTransport<Socket>>(std::move(socket), nullptr);
  }
  return std::make_unique<StreamTransport<TlsStream>>(TlsStream(std::move(socket), *tls), tls);
}

}  // namespace pagezip::http
