#include "api/http/transport.h"

#include <poll.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/ssl/ssl_stream.hpp>
#include <type_traits>

namespace pagezip::http {
namespace {

namespace beast = boost::beast;
using TlsStream = beast::ssl_stream<beast::tcp_stream>;

constexpr auto kNoThrow = asio::as_tuple(asio::use_awaitable);

template <typename Stream>
class StreamTransport : public Transport {
 public:
  // `tls` lives as long as the stream.
  StreamTransport(Stream stream, std::shared_ptr<asio::ssl::context> tls)
      : tls_(std::move(tls)), stream_(std::move(stream)) {}

  asio::awaitable<Result> handshake(Deadline deadline) override {
    if constexpr (std::is_same_v<Stream, TlsStream>) {
      lowest().expires_at(deadline);
      const auto [error] =
          co_await stream_.async_handshake(asio::ssl::stream_base::server, kNoThrow);
      co_return result(error, 0);
    }
    co_return Result{};
  }
  asio::awaitable<Result> read_some(std::span<char> into, Deadline deadline) override {
    lowest().expires_at(deadline);
    const auto [error, bytes] =
        co_await stream_.async_read_some(asio::buffer(into.data(), into.size()), kNoThrow);
    co_return result(error, bytes);
  }
  asio::awaitable<Result> write(std::string_view text, Deadline deadline) override {
    lowest().expires_at(deadline);
    const auto [error, bytes] = co_await asio::async_write(stream_, asio::buffer(text), kNoThrow);
    co_return result(error, bytes);
  }
  asio::awaitable<void> shut_down(Deadline deadline) override {
    if constexpr (std::is_same_v<Stream, TlsStream>) {
      lowest().expires_at(deadline);
      co_await stream_.async_shutdown(kNoThrow);
    }
    boost::system::error_code ignored;
    lowest().socket().shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
    co_return;
  }
  asio::awaitable<Result> discard_some(std::span<char> into, Deadline deadline) override {
    lowest().expires_at(deadline);
    const auto [error, bytes] =
        co_await lowest().async_read_some(asio::buffer(into.data(), into.size()), kNoThrow);
    co_return result(error, bytes);
  }
  void close() override { lowest().close(); }
  bool peer_closed() override {
    pollfd poll_it{lowest().socket().native_handle(), POLLRDHUP, 0};
    return ::poll(&poll_it, 1, 0) > 0 &&
           (poll_it.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0;
  }

 private:
  beast::tcp_stream& lowest() { return beast::get_lowest_layer(stream_); }
  static Result result(boost::system::error_code error, size_t bytes) {
    return {error, error == beast::error::timeout, bytes};
  }

  std::shared_ptr<asio::ssl::context> tls_;
  Stream stream_;
};

}  // namespace

std::unique_ptr<Transport> make_transport(asio::ip::tcp::socket socket,
                                          const std::shared_ptr<asio::ssl::context>& tls) {
  boost::system::error_code ignored;
  socket.set_option(asio::ip::tcp::no_delay(true), ignored);
  beast::tcp_stream stream(std::move(socket));
  if (tls == nullptr) {
    return std::make_unique<StreamTransport<beast::tcp_stream>>(std::move(stream), nullptr);
  }
  return std::make_unique<StreamTransport<TlsStream>>(TlsStream(std::move(stream), *tls), tls);
}

}  // namespace pagezip::http
