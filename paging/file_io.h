// Files as documents need them: written whole or not at all, read by ranges.
//
// One thread per object. Any number of processes may write the same path; the last one wins.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "paging/files.h"

namespace pagezip {

/// A file that appears under its name at commit(), with all that was written. Until then it is a
/// temporary of the same folder, which the destructor removes. Throws Error(kOutput).
class AtomicFile {
 public:
  /// What the name of a temporary contains.
  static constexpr const char* kTemporaryMark = ".tmp";

  /// Borrows `files`.
  AtomicFile(Files& files, const std::string& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write_at(int64_t offset, std::span<const std::byte> bytes);
  /// Where its bytes are until commit().
  const std::string& temporary() const { return temporary_; }
  /// The data first, then the name, then the folder, each on the disk before the next: a crash
  /// leaves the old file or the new one.
  void commit();

 private:
  [[noreturn]] void fail(const char* what, int error) const;

  Files& files_;
  std::string path_;
  std::string temporary_;  // empty once it is gone
  std::unique_ptr<OpenFile> file_;
};

/// A regular file. read() and not mmap: a file that somebody cuts off while it is read is an error,
/// not a signal. Throws Error(kModelFile) for a file that isn't there or ends early,
/// Error(kRuntime) where the system can't read it.
class InputFile {
 public:
  InputFile(Files& files, const std::string& path);

  int64_t size() const { return size_; }  // when it was opened
  void read_at(int64_t offset, std::span<std::byte> target) const;
  /// Throws Error(kModelFile, "PATH: what").
  [[noreturn]] void fail(const std::string& what) const;

 private:
  std::string path_;
  std::unique_ptr<OpenFile> file_;
  int64_t size_ = 0;
};

/// Writes all of `bytes`. Returns the system's error, or 0.
int write_all(OpenFile& file, int64_t offset, std::span<const std::byte> bytes);

}  // namespace pagezip
