#include "api/cli/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "api/cli/signals.h"
#include "base/error.h"
#include "engine/pipeline.h"
#include "engine/utf8.h"

namespace pagezip {
namespace {

constexpr size_t kTextMax = size_t{256} << 20;

[[noreturn]] void fail(ErrorKind kind, std::string_view action, const std::string& path, int code) {
  throw Error(kind, fmt::format("cannot {} {}: {}", action, path, std::strerror(code)));
}

/// An open file. A plain descriptor, because a read of standard input must end with Ctrl-C.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ > STDERR_FILENO) {
      close(fd_);
    }
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  /// The result of close().
  int finish() { return close(std::exchange(fd_, -1)); }

 private:
  int fd_;
};

std::string read_all(const std::string& path, std::string_view what) {
  const std::string action = fmt::format("read the {}", what);
  const Descriptor file(path == "-" ? STDIN_FILENO : open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) {
    fail(ErrorKind::kUsage, action, path, errno);
  }
  std::string text;
  size_t size = 0;
  while (true) {
    constexpr size_t kStep = 1 << 20;
    text.resize(size + kStep);
    const ssize_t got = read(file.get(), text.data() + size, kStep);
    if (interrupting_signal() != 0) {
      throw Cancelled();
    }
    if (got < 0 && errno != EINTR) {
      fail(ErrorKind::kUsage, action, path, errno);
    }
    if (got == 0) {
      break;
    }
    size += static_cast<size_t>(std::max<ssize_t>(got, 0));
    if (size > kTextMax) {
      throw Error(ErrorKind::kUsage,
                  fmt::format("the {} {} is larger than {} MiB", what, path, kTextMax >> 20));
    }
  }
  text.resize(size);
  return text;
}

void write_all(int fd, const std::string& path, const char* data, size_t size) {
  while (size > 0) {
    const ssize_t put = write(fd, data, size);
    if (put < 0 && errno != EINTR) {
      fail(ErrorKind::kOutput, "write", path, errno);
    }
    data += std::max<ssize_t>(put, 0);
    size -= static_cast<size_t>(std::max<ssize_t>(put, 0));
  }
}

}  // namespace

void check_text(std::string_view text, std::string_view what) {
  const size_t nul = text.find('\0');
  if (nul != std::string_view::npos) {
    throw Error(ErrorKind::kUsage,
                fmt::format("{} is binary, not text: a NUL byte at offset {}", what, nul));
  }
  const size_t valid = valid_utf8_bytes(text);
  if (valid != text.size()) {
    throw Error(ErrorKind::kUsage, fmt::format("{} is not UTF-8: byte 0x{:02x} at offset {}", what,
                                               static_cast<uint8_t>(text[valid]), valid));
  }
}

std::string read_document(const std::string& path) {
  std::string text = read_all(path, "document");
  const std::string what = path == "-" ? "the document on standard input" : "the document " + path;
  if (text.empty()) {
    throw Error(ErrorKind::kUsage, what + " is empty");
  }
  check_text(text, what);
  return text;
}

std::string read_text(const std::string& path, std::string_view what) {
  std::string text = read_all(path, what);
  check_text(text, fmt::format("the {} {}", what, path));
  return text;
}

void check_writable(const std::string& path, bool to_replace) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    fail(ErrorKind::kOutput, "write", path, EISDIR);
  }
  if (to_replace && fs::exists(path, ignored) && !fs::is_regular_file(path, ignored)) {
    throw Error(ErrorKind::kOutput, fmt::format("cannot write {}: not a regular file", path));
  }
  if (fs::exists(path, ignored)) {
    if (access(path.c_str(), W_OK) != 0) {
      fail(ErrorKind::kOutput, "write", path, errno);
    }
    return;
  }
  const fs::path folder = fs::path(path).parent_path();
  // The dot: a file in the folder's place is "not a directory".
  if (access((folder / ".").c_str(), W_OK | X_OK) != 0) {
    fail(ErrorKind::kOutput, "write", path, errno);
  }
}

void write_npy(const std::string& path, std::span<const int64_t> shape,
               std::span<const float> values) {
  std::string header = fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({},), }}",
                                   fmt::join(shape, ", "));
  constexpr size_t kPreamble = 10;  // magic, version, header length
  header.resize((kPreamble + header.size() + 1 + 63) / 64 * 64 - kPreamble - 1, ' ');
  header += '\n';
  std::string start("\x93NUMPY\x01\x00", 8);
  start += static_cast<char>(header.size() & 0xff);
  start += static_cast<char>(header.size() >> 8);
  start += header;

  Descriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (file.get() < 0) {
    fail(ErrorKind::kOutput, "write", path, errno);
  }
  try {
    write_all(file.get(), path, start.data(), start.size());
    write_all(file.get(), path, reinterpret_cast<const char*>(values.data()), values.size_bytes());
    if (file.finish() != 0) {
      fail(ErrorKind::kOutput, "write", path, errno);
    }
  } catch (const Error&) {
    std::error_code ignored;
    if (std::filesystem::is_regular_file(path, ignored)) {
      std::filesystem::remove(path, ignored);
    }
    throw;
  }
}

}  // namespace pagezip
