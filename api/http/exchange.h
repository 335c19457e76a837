// One HTTP request and the way to answer it, without the library that speaks HTTP.
//
// A handler is a coroutine on the server's one I/O thread. It may read the body, and then either
// send one reply or start a stream and write to it. What it throws becomes a reply
// (api/http/api_error.h), or the last event of a stream that has begun.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pagezip::http {

namespace asio = boost::asio;

using Header = std::pair<std::string, std::string>;

struct RequestHead {
  std::string method;
  std::string path;                   // percent-decoded, without the query
  std::vector<Header> query;          // decoded
  std::vector<Header> headers;        // names in lower case
  std::string id;                     // X-Request-Id: the client's, or made
  std::optional<uint64_t> body_size;  // nothing: unknown (chunked)

  /// The value of the first such header; `name` in lower case.
  std::optional<std::string_view> header(std::string_view name) const;
  std::optional<std::string_view> query_value(std::string_view name) const;
};

struct Reply {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";
  std::vector<Header> headers = {};
  std::optional<uint64_t> stream_bytes = {};  // of a stream, if known before
};

/// Handlers make replies in locals, as g++ 12 destroys some temporaries of coroutines twice.
inline Reply json_text(std::string body) {
  Reply reply;
  reply.body = std::move(body);
  return reply;
}

/// The client has gone, or takes nothing any more. Thrown by writes; nobody is left to be told.
class ClientGone : public std::exception {
 public:
  const char* what() const noexcept override { return "the client is gone"; }
};

class Exchange {
 public:
  explicit Exchange(RequestHead head) : head_(std::move(head)) {}
  virtual ~Exchange() = default;
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  const RequestHead& head() const { return head_; }

  /// The next part of the body, "" at its end. Throws ApiError(408) if it is too slow.
  virtual asio::awaitable<std::string> read_some() = 0;
  /// As read_some(), of a body of at most `max` bytes. Throws ApiError(413) above.
  asio::awaitable<std::string> read_part(uint64_t max);
  /// The whole body, likewise.
  asio::awaitable<std::string> read_body(uint64_t max);

  /// At most once, and not with a stream.
  virtual asio::awaitable<void> send(Reply reply) = 0;

  /// `head`: without a body.
  virtual asio::awaitable<void> start_stream(Reply head) = 0;
  /// Returns when the system took it all. Throws ClientGone, also if the client takes too long.
  virtual asio::awaitable<void> write(std::string_view text) = 0;
  virtual asio::awaitable<void> end_stream() = 0;

  /// Whether a reply or a stream has begun.
  virtual bool started() const = 0;
  /// Whether the client has closed the connection, or its half of it: it waits for nothing then.
  virtual bool gone() = 0;

  std::vector<Header> common_headers;  // of whatever reply it gets
  // What the access log tells:
  std::string tenant;
  int status = 0;  // of the reply; 0: the client left before

 private:
  RequestHead head_;
  uint64_t body_bytes_ = 0;  // read by read_part()
};

}  // namespace pagezip::http
