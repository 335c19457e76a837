// The one exception type: it ends a request or the start-up, never the process by itself.
//
// Thrown for what a user, a file or a client caused (a broken model file, a bad ratio, a document
// that does not fit). Caught at the API border, where the kind becomes an exit code or a status.
// Inside a step nothing throws: expected shortages are return values.
#pragma once

#include <stdexcept>
#include <string>

namespace pagezip {

/// What went wrong. The values are the exit codes of the command line.
enum class ErrorKind {
  kRuntime = 1,      // anything without a better name: a job failed, an I/O error while reading
  kUsage = 2,        // bad arguments or a bad input document
  kModelFile = 3,    // the model or document file is broken, or of a kind we do not support
  kOutOfMemory = 4,  // the pool or the host memory cannot hold the job
  kOutput = 5,       // the result cannot be written
};

/// `what()` is one line for the user, without a trailing newline.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

}  // namespace pagezip
