#include "paging/file_io.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace pagezip {

AtomicFile::AtomicFile(Files& files, const std::string& path) : files_(files), path_(path) {
  // Not mkstemp, which would leave the file readable to its owner alone.
  constexpr int kNames = 100;
  int error = EEXIST;
  for (int i = 0; i < kNames && error == EEXIST; ++i) {
    temporary_ = path + kTemporaryMark + std::to_string(getpid()) + "." + std::to_string(i);
    Opened opened = files.open(temporary_, OpenMode::kCreate);
    error = opened.error;
    file_ = std::move(opened.file);
  }
  if (error != 0) {
    fail("create", error);  // no destructor runs, and there is nothing to remove
  }
}

AtomicFile::~AtomicFile() {
  file_.reset();
  if (!temporary_.empty()) {
    files_.remove(temporary_);
  }
}

void AtomicFile::write_at(int64_t offset, std::span<const std::byte> bytes) {
  const int error = write_all(*file_, offset, bytes);
  if (error != 0) {
    fail("write", error);
  }
}

void AtomicFile::commit() {
  // Not tried again after an error: the system may have forgotten what it could not write.
  if (const int error = file_->sync(); error != 0) {
    fail("write", error);
  }
  file_.reset();
  if (const int error = files_.rename(temporary_, path_); error != 0) {
    fail("create", error);
  }
  temporary_.clear();
  if (const int error = files_.sync_folder(folder_of(path_)); error != 0) {
    fail("sync the folder of", error);
  }
}

void AtomicFile::fail(const char* what, int error) const {
  throw Error(ErrorKind::kOutput,
              std::string("cannot ") + what + " " + path_ + ": " + std::strerror(error));
}

InputFile::InputFile(Files& files, const std::string& path) : path_(path) {
  Opened opened = files.open(path, OpenMode::kRead);
  if (opened.error != 0) {
    fail(std::strerror(opened.error));
  }
  if (!opened.is_regular) {
    fail("is not a regular file");
  }
  file_ = std::move(opened.file);
  size_ = opened.bytes;
}

void InputFile::read_at(int64_t offset, std::span<std::byte> target) const {
  while (!target.empty()) {
    const IoResult result = file_->read_at(offset, target);
    if (result.error != 0) {
      throw Error(ErrorKind::kRuntime, "cannot read " + path_ + ": " + std::strerror(result.error));
    }
    if (result.bytes == 0) {
      fail("ends early");
    }
    offset += result.bytes;
    target = target.subspan(static_cast<size_t>(result.bytes));
  }
}

void InputFile::fail(const std::string& what) const {
  throw Error(ErrorKind::kModelFile, path_ + ": " + what);
}

int write_all(OpenFile& file, int64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const IoResult result = file.write_at(offset, bytes);
    if (result.error != 0) {
      return result.error;
    }
    if (result.bytes == 0) {
      return EIO;  // no progress, and no reason given
    }
    offset += result.bytes;
    bytes = bytes.subspan(static_cast<size_t>(result.bytes));
  }
  return 0;
}

}  // namespace pagezip
