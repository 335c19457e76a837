#include "api/http/connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/write.hpp>
#include <sstream>

#include "api/http/api_error.h"
#include "api/http/json_text.h"
#include "api/http/target.h"
#include "api/http/transport.h"

namespace pagezip::http {
namespace {

namespace beast = boost::beast;
namespace bhttp = boost::beast::http;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;
using Parser = bhttp::request_parser<bhttp::buffer_body>;

constexpr size_t kPartBytes = 64 << 10;      // of a body, read at once
constexpr uint64_t kDrainBytes = 256 << 10;  // of a body that nobody wanted, before it is too much
constexpr uint64_t kLingerBytes = 64 << 20;
constexpr std::chrono::seconds kLingerTime{2};

class Connection {
 public:
  Connection(std::unique_ptr<Transport> transport, const ConnectionOptions& options)
      : transport_(std::move(transport)), options_(options), limits_(options.limits) {}

  asio::awaitable<void> run();

  // ---- of the exchange

  asio::awaitable<std::string> read_some();
  asio::awaitable<void> send(Reply reply, const RequestHead& head);
  asio::awaitable<void> start_stream(Reply reply, const RequestHead& head);
  asio::awaitable<void> write(std::string_view text);
  asio::awaitable<void> end_stream();
  bool gone() { return !open_ || transport_->peer_closed(); }

 private:
  enum class Head : uint8_t { kThere, kEnd, kBroken };

  std::string header_text(const Reply& reply, const RequestHead& head,
                          std::optional<uint64_t> length, bool chunked);
  asio::awaitable<void> write_all(std::string_view text);
  asio::awaitable<Head> read_head();
  asio::awaitable<void> refuse(const ApiError& error);
  RequestHead take_head();
  asio::awaitable<void> answer();
  asio::awaitable<void> fail(Exchange& exchange, bool streaming, const ApiError& error);
  asio::awaitable<bool> drain();
  asio::awaitable<void> close();

  std::unique_ptr<Transport> transport_;
  const ConnectionOptions& options_;
  const ConnectionLimits& limits_;
  std::string buffer_;              // read, and not parsed yet
  std::unique_ptr<Parser> parser_;  // of the current request
  Transport::Deadline body_deadline_;
  std::optional<ApiError> head_error_;
  bool open_ = true;
  bool keep_alive_ = false;
  bool expect_continue_ = false;
  bool must_linger_ = false;
  // Of the current stream:
  bool chunked_ = false;
  bool bodiless_ = false;
};

class BeastExchange : public Exchange {
 public:
  BeastExchange(Connection& connection, RequestHead head)
      : Exchange(std::move(head)), connection_(connection) {}

  asio::awaitable<std::string> read_some() override { return connection_.read_some(); }
  asio::awaitable<void> send(Reply reply) override {
    begin(reply);
    return connection_.send(std::move(reply), head());
  }
  asio::awaitable<void> start_stream(Reply reply) override {
    begin(reply);
    streaming_ = true;
    return connection_.start_stream(std::move(reply), head());
  }
  asio::awaitable<void> write(std::string_view text) override { return connection_.write(text); }
  asio::awaitable<void> end_stream() override {
    streaming_ = false;
    return connection_.end_stream();
  }
  bool started() const override { return started_; }
  bool streaming() const { return streaming_; }
  bool gone() override { return connection_.gone(); }

 private:
  void begin(Reply& reply) {
    started_ = true;
    status = reply.status;
    reply.headers.insert(reply.headers.end(), common_headers.begin(), common_headers.end());
  }

  Connection& connection_;
  bool started_ = false;
  bool streaming_ = false;
};

asio::awaitable<void> Connection::run() {
  const Transport::Result greeted =
      co_await transport_->handshake(Clock::now() + limits_.header_time);
  if (!greeted) {
    co_return;
  }
  // g++ 12 compiles co_await behind && to a crash.
  while (open_) {
    const Head head = co_await read_head();
    if (head == Head::kBroken && head_error_) {
      const ApiError error = *head_error_;
      co_await refuse(error);
    }
    if (head != Head::kThere) {
      break;
    }
    co_await answer();
    if (open_) {
      open_ = co_await drain();
    }
  }
  co_await close();
}

// ---- requests ----

asio::awaitable<Connection::Head> Connection::read_head() {
  parser_ = std::make_unique<Parser>();
  parser_->header_limit(limits_.header_bytes);
  parser_->body_limit(boost::none);  // handlers know their limits
  // The next request may take its time to begin, but not to come.
  Transport::Deadline deadline =
      Clock::now() + (buffer_.empty() ? limits_.idle_time : limits_.header_time);
  bool begun = !buffer_.empty();
  while (!parser_->is_header_done()) {
    error_code error = bhttp::make_error_code(bhttp::error::need_more);
    if (!buffer_.empty()) {
      buffer_.erase(0, parser_->put(asio::buffer(buffer_), error));
    }
    if (error == bhttp::error::header_limit || buffer_.size() > limits_.header_bytes) {
      head_error_.emplace(431, "headers_too_large",
                          fmt::format("the headers have more than {} bytes", limits_.header_bytes));
      co_return Head::kBroken;
    }
    if (error && error != bhttp::error::need_more) {
      head_error_.emplace(400, "bad_request", "this is not an HTTP request: " + error.message());
      co_return Head::kBroken;
    }
    if (!error) {
      continue;
    }
    char part[4096];
    const Transport::Result read = co_await transport_->read_some(part, deadline);
    if (read.timed_out && begun) {
      head_error_.emplace(408, "header_timeout", "the headers came too slowly");
      co_return Head::kBroken;
    }
    if (!read) {
      co_return Head::kEnd;
    }
    buffer_.append(part, read.bytes);
    if (!begun) {
      begun = true;
      deadline = Clock::now() + limits_.header_time;
    }
  }
  body_deadline_ = Clock::now() + limits_.body_time;
  co_return Head::kThere;
}

// What isn't HTTP is told so, if anybody listens.
asio::awaitable<void> Connection::refuse(const ApiError& error) {
  RequestHead head;
  head.id = make_request_id();
  keep_alive_ = false;
  must_linger_ = true;
  try {
    Reply reply = error.reply();
    co_await send(std::move(reply), head);
  } catch (const ClientGone&) {
    must_linger_ = false;
  }
}

RequestHead Connection::take_head() {
  const auto& message = parser_->get();
  RequestHead head;
  head.method = std::string(message.method_string());
  size_t count = 0;
  for (const auto& field : message) {
    if (++count > limits_.headers) {
      throw ApiError(431, "headers_too_large",
                     fmt::format("there are more than {} headers", limits_.headers));
    }
    head.headers.emplace_back(lower(field.name_string()), std::string(field.value()));
  }
  head.id = request_id(head.header("x-request-id"));
  if (const auto length = parser_->content_length()) {
    head.body_size = *length;
  } else if (!parser_->chunked()) {
    head.body_size = 0;
  }
  parse_target(message.target(), head);
  if (message.version() >= 11 && !head.header("host")) {
    throw ApiError(400, "bad_request", "the Host header is missing");
  }
  return head;
}

asio::awaitable<void> Connection::answer() {
  const auto start = Clock::now();
  keep_alive_ = parser_->get().keep_alive();
  bodiless_ = false;
  expect_continue_ = beast::iequals(parser_->get()[bhttp::field::expect], "100-continue");
  RequestHead head;
  std::optional<ApiError> failure;
  try {
    head = take_head();
  } catch (const ApiError& error) {
    failure = error;
    head = {};
    head.id = make_request_id();
    keep_alive_ = false;
  }
  BeastExchange exchange(*this, std::move(head));
  if (!failure) {
    try {
      co_await options_.handle(exchange);
    } catch (const ClientGone&) {
      open_ = false;
    } catch (const std::exception& error) {
      failure = to_api_error(error);
    }
  }
  if (failure) {
    co_await fail(exchange, exchange.streaming(), *failure);
  }
  options_.done(exchange,
                std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start));
  open_ = open_ && keep_alive_;
}

asio::awaitable<void> Connection::fail(Exchange& exchange, bool streaming, const ApiError& error) {
  try {
    if (!exchange.started()) {
      Reply answer = error.reply();
      co_await exchange.send(std::move(answer));
      must_linger_ = !parser_->is_done();
    } else if (streaming) {
      keep_alive_ = false;
      const std::string event = fmt::format("data: {}\n\n", to_text(error.json()));
      co_await exchange.write(event);
      co_await exchange.end_stream();
    }
  } catch (const ClientGone&) {
    open_ = false;
  }
}

asio::awaitable<std::string> Connection::read_some() {
  if (expect_continue_ && !parser_->is_done()) {
    expect_continue_ = false;
    co_await write_all("HTTP/1.1 100 Continue\r\n\r\n");
  }
  std::string part(kPartBytes, '\0');
  while (!parser_->is_done()) {
    error_code error = bhttp::make_error_code(bhttp::error::need_more);
    if (!buffer_.empty()) {
      parser_->get().body().data = part.data();
      parser_->get().body().size = part.size();
      buffer_.erase(0, parser_->put(asio::buffer(buffer_), error));
      const size_t got = part.size() - parser_->get().body().size;
      if (got > 0) {
        part.resize(got);
        co_return part;
      }
    }
    if (error && error != bhttp::error::need_more && error != bhttp::error::need_buffer) {
      keep_alive_ = false;
      must_linger_ = true;
      throw ApiError(400, "bad_body", "the body is broken: " + error.message());
    }
    // put() takes one thing at a time: a chunk's size, its bytes.
    if (error != bhttp::error::need_more) {
      continue;
    }
    std::string more(kPartBytes, '\0');
    const Transport::Result read = co_await transport_->read_some(more, body_deadline_);
    if (read.timed_out) {
      throw ApiError(408, "body_timeout", "the body came too slowly");
    }
    if (!read) {
      throw ClientGone();
    }
    buffer_.append(more, 0, read.bytes);
  }
  co_return std::string();
}

// The rest of a body that nobody read. False: there is too much of it.
asio::awaitable<bool> Connection::drain() {
  if (expect_continue_ && !parser_->is_done()) {
    co_return false;  // it was never asked for
  }
  uint64_t bytes = 0;
  try {
    while (!parser_->is_done()) {
      const std::string part = co_await read_some();
      bytes += part.size();
      if (bytes > kDrainBytes) {
        must_linger_ = true;
        co_return false;
      }
    }
  } catch (const std::exception&) {
    co_return false;
  }
  co_return true;
}

// ---- replies ----

std::string Connection::header_text(const Reply& reply, const RequestHead& head,
                                    std::optional<uint64_t> length, bool chunked) {
  bhttp::response<bhttp::empty_body> message;
  if (!options_.keep_alive()) {
    keep_alive_ = false;
  }
  const bool has_content = reply.status != 204 && reply.status != 304;
  message.result(static_cast<unsigned>(reply.status));
  message.version(11);
  message.set(bhttp::field::server, "pagezip");
  message.set("X-Request-Id", head.id);
  if (has_content && !reply.content_type.empty()) {
    message.set(bhttp::field::content_type, reply.content_type);
  }
  for (const auto& [name, value] : reply.headers) {
    message.insert(name, value);
  }
  if (has_content && length) {
    message.content_length(*length);
  } else if (chunked) {
    message.chunked(true);
  }
  message.keep_alive(keep_alive_);
  std::ostringstream text;
  text << message.base();
  return text.str();
}

asio::awaitable<void> Connection::write_all(std::string_view text) {
  const Transport::Result written =
      co_await transport_->write(text, Clock::now() + limits_.write_time);
  if (!written) {
    open_ = false;
    throw ClientGone();
  }
}

asio::awaitable<void> Connection::send(Reply reply, const RequestHead& head) {
  std::string text = header_text(reply, head, reply.body.size(), false);
  if (head.method != "HEAD" && reply.status != 204 && reply.status != 304) {
    text += reply.body;
  }
  co_await write_all(text);
}

asio::awaitable<void> Connection::start_stream(Reply reply, const RequestHead& head) {
  chunked_ = parser_->get().version() >= 11 && !reply.stream_bytes;
  bodiless_ = head.method == "HEAD";
  if (!chunked_ && !reply.stream_bytes) {
    keep_alive_ = false;  // an HTTP/1.0 client sees the end of the stream by the end of all
  }
  const std::string text = header_text(reply, head, reply.stream_bytes, chunked_);
  co_await write_all(text);
}

asio::awaitable<void> Connection::write(std::string_view text) {
  if (text.empty() || bodiless_) {
    co_return;
  }
  if (!chunked_) {
    co_await write_all(text);
    co_return;
  }
  const std::string chunk = fmt::format("{:x}\r\n{}\r\n", text.size(), text);
  co_await write_all(chunk);
}

asio::awaitable<void> Connection::end_stream() {
  if (chunked_ && !bodiless_) {
    co_await write_all("0\r\n\r\n");
  }
}

// A client that still sends would get a reset instead of its reply: so it is listened to for a
// moment.
asio::awaitable<void> Connection::close() {
  co_await transport_->shut_down(Clock::now() + std::chrono::seconds(1));
  const Transport::Deadline deadline = Clock::now() + kLingerTime;
  std::string sink(must_linger_ ? kPartBytes : 0, '\0');
  uint64_t bytes = 0;
  while (must_linger_ && bytes < kLingerBytes) {
    const Transport::Result read = co_await transport_->discard_some(sink, deadline);
    if (!read) {
      break;
    }
    bytes += read.bytes;
  }
  transport_->close();
}

}  // namespace

asio::awaitable<void> serve_connection(asio::ip::tcp::socket socket,
                                       std::shared_ptr<asio::ssl::context> tls,
                                       const ConnectionOptions& options) {
  try {
    Connection connection(make_transport(std::move(socket), tls), options);
    co_await connection.run();
  } catch (const std::exception&) {
    co_return;  // a connection ends alone
  }
}

asio::awaitable<void> refuse_connection(asio::ip::tcp::socket socket) {
  static constexpr std::string_view kReply =
      "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
      "Connection: close\r\nContent-Length: 114\r\n\r\n"
      R"({"error":{"message":"too many connections","type":"unavailable_error","param":null,"code":"too_many_connections"}})";
  const std::unique_ptr<Transport> transport = make_transport(std::move(socket), nullptr);
  co_await transport->write(kReply, Clock::now() + std::chrono::seconds(1));
  co_await transport->shut_down(Clock::now() + std::chrono::seconds(1));
}

}  // namespace pagezip::http
