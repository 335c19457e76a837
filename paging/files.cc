#include "paging/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <string_view>

namespace pagezip {
namespace {

// Calls until no signal interrupts it.
template <typename Call>
auto uninterrupted(const Call& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) {
    result = call();
  }
  return result;
}

int error_unless(bool good) { return good ? 0 : errno; }

class SystemFile : public OpenFile {
 public:
  explicit SystemFile(int fd) : fd_(fd) {}
  ~SystemFile() override { close(fd_); }
  SystemFile(const SystemFile&) = delete;
  SystemFile& operator=(const SystemFile&) = delete;

  IoResult read_at(int64_t offset, std::span<std::byte> target) override {
    return result(uninterrupted([&] { return pread(fd_, target.data(), target.size(), offset); }));
  }
  IoResult write_at(int64_t offset, std::span<const std::byte> bytes) override {
    return result(uninterrupted([&] { return pwrite(fd_, bytes.data(), bytes.size(), offset); }));
  }
  int sync() override {
    return error_unless(uninterrupted([&] { return fsync(fd_); }) == 0);
  }

 private:
  static IoResult result(ssize_t bytes) {
    return bytes < 0 ? IoResult{0, errno} : IoResult{bytes, 0};
  }

  int fd_;
};

int flags_of(OpenMode mode) {
  switch (mode) {
    case OpenMode::kRead:
      return O_RDONLY | O_NONBLOCK;  // opening a pipe must not wait for its other end
    case OpenMode::kCreate:
      return O_WRONLY | O_CREAT | O_EXCL;
    case OpenMode::kUpdate:
      return O_RDWR | O_NONBLOCK;
    case OpenMode::kLock:
      return O_RDWR | O_CREAT;
  }
  return 0;
}

class SystemFiles : public Files {
 public:
  Opened open(const std::string& path, OpenMode mode) override {
    const int flags = flags_of(mode) | O_CLOEXEC;
    const int fd = uninterrupted([&] { return ::open(path.c_str(), flags, 0666); });
    if (fd < 0) {
      return {nullptr, 0, true, errno};
    }
    auto file = std::make_unique<SystemFile>(fd);
    struct stat status {};
    if (fstat(fd, &status) != 0 ||
        (mode == OpenMode::kLock &&
         uninterrupted([&] { return flock(fd, LOCK_EX | LOCK_NB); }) != 0)) {
      return {nullptr, 0, true, errno};
    }
    return {std::move(file), status.st_size, S_ISREG(status.st_mode), 0};
  }

  int rename(const std::string& from, const std::string& to) override {
    return error_unless(std::rename(from.c_str(), to.c_str()) == 0);
  }

  int remove(const std::string& path) override { return error_unless(unlink(path.c_str()) == 0); }

  int sync_folder(const std::string& folder) override {
    const Opened opened = open_folder(folder);
    if (opened.error != 0) {
      return opened.error;
    }
    const int error = opened.file->sync();
    return error == EINVAL ? 0 : error;  // so say file systems that can't sync a folder
  }

  int list(const std::string& folder, std::vector<std::string>& names) override {
    names.clear();
    DIR* entries = opendir(folder.c_str());
    if (entries == nullptr) {
      return errno;
    }
    errno = 0;
    while (const dirent* entry = readdir(entries)) {
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") {
        names.emplace_back(name);
      }
    }
    const int error = errno;
    closedir(entries);
    std::sort(names.begin(), names.end());
    return error;
  }

 private:
  static Opened open_folder(const std::string& folder) {
    const int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
    const int fd = uninterrupted([&] { return ::open(folder.c_str(), flags); });
    if (fd < 0) {
      return {nullptr, 0, false, errno};
    }
    return {std::make_unique<SystemFile>(fd), 0, false, 0};
  }
};

}  // namespace

Files& system_files() {
  static SystemFiles files;
  return files;
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) {
    return ".";
  }
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace pagezip
