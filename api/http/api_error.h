// What goes wrong with a request, in the shape that OpenAI's clients know:
//   {"error": {"message": .., "type": .., "param": .., "code": ..}}
#pragma once

#include <boost/json/object.hpp>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "api/http/exchange.h"
#include "base/error.h"

namespace pagezip::http {

class ApiError : public std::exception {
 public:
  /// `code` and `param` may be empty: null then. The type follows from the status.
  ApiError(int status, std::string code, std::string message, std::string param = "")
      : status_(status),
        code_(std::move(code)),
        message_(std::move(message)),
        param_(std::move(param)) {}

  ApiError& with_header(std::string name, std::string value) {
    headers_.emplace_back(std::move(name), std::move(value));
    return *this;
  }
  /// One more field of the error object.
  ApiError& with_field(std::string_view name, boost::json::value value) {
    fields_[name] = std::move(value);
    return *this;
  }

  int status() const { return status_; }
  const char* what() const noexcept override { return message_.c_str(); }
  boost::json::object json() const;
  Reply reply() const;

 private:
  int status_;
  std::string code_;
  std::string message_;
  std::string param_;
  std::vector<Header> headers_;
  boost::json::object fields_;
};

/// Any exception of a handler, as what the client is told.
ApiError to_api_error(const std::exception& error);

}  // namespace pagezip::http
