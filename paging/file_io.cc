#include "paging/file_io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/error.h"

namespace pagezip {
namespace {

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) {
    return ".";
  }
  return slash == 0 ? "/" : path.substr(0, slash);
}

int open_uninterrupted(const std::string& path, int flags) {
  int fd = -1;
  do {
    fd = open(path.c_str(), flags | O_CLOEXEC, 0666);
  } while (fd < 0 && errno == EINTR);
  return fd;
}

}  // namespace

AtomicFile::AtomicFile(const std::string& path) : path_(path) {
  // Not mkstemp, which would leave the file readable to its owner alone.
  constexpr int kNames = 100;
  for (int i = 0; i < kNames && fd_ < 0; ++i) {
    temporary_ = path + ".tmp" + std::to_string(getpid()) + "." + std::to_string(i);
    fd_ = open_uninterrupted(temporary_, O_WRONLY | O_CREAT | O_EXCL);
    if (fd_ < 0 && errno != EEXIST) {
      break;
    }
  }
  if (fd_ < 0) {
    fail("create");  // no destructor runs, and there is nothing to remove
  }
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) {
    close(fd_);
  }
  if (!temporary_.empty()) {
    unlink(temporary_.c_str());
  }
}

void AtomicFile::write_at(int64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = pwrite(fd_, bytes.data(), bytes.size(), offset);
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written <= 0) {
      fail("write");
    }
    offset += written;
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

void AtomicFile::commit() {
  if (fsync(fd_) != 0) {
    fail("write");
  }
  const int fd = fd_;
  fd_ = -1;
  if (close(fd) != 0) {
    fail("write");
  }
  if (rename(temporary_.c_str(), path_.c_str()) != 0) {
    fail("create");
  }
  temporary_.clear();
  const int folder = open_uninterrupted(folder_of(path_), O_RDONLY | O_DIRECTORY);
  const bool synced = folder >= 0 && fsync(folder) == 0;
  const int error = errno;
  if (folder >= 0) {
    close(folder);
  }
  // Some file systems can't sync a folder; they say so with EINVAL.
  if (!synced && error != EINVAL) {
    errno = error;
    fail("sync the folder of");
  }
}

void AtomicFile::fail(const char* what) const {
  throw Error(ErrorKind::kOutput,
              std::string("cannot ") + what + " " + path_ + ": " + std::strerror(errno));
}

InputFile::InputFile(const std::string& path) : path_(path) {
  // O_NONBLOCK: opening a pipe must not wait for its other end.
  fd_ = open_uninterrupted(path, O_RDONLY | O_NONBLOCK);
  if (fd_ < 0) {
    fail(std::strerror(errno));
  }
  struct stat status {};
  const bool known = fstat(fd_, &status) == 0;
  if (!known || !S_ISREG(status.st_mode)) {
    const std::string what = known ? "is not a regular file" : std::strerror(errno);
    close(fd_);
    fail(what);
  }
  size_ = status.st_size;
}

InputFile::~InputFile() { close(fd_); }

void InputFile::read_at(int64_t offset, std::span<std::byte> target) const {
  while (!target.empty()) {
    const ssize_t count = pread(fd_, target.data(), target.size(), offset);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      fail(std::strerror(errno));
    }
    if (count == 0) {
      fail("ends early");
    }
    offset += count;
    target = target.subspan(static_cast<size_t>(count));
  }
}

void InputFile::fail(const std::string& what) const {
  throw Error(ErrorKind::kModelFile, path_ + ": " + what);
}

}  // namespace pagezip
