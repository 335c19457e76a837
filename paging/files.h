// The file system as documents need it, behind an interface, so that tests can lose power.
//
// Nothing here throws: an error is the system's number (errno), 0 if there is none, and what it
// means is the caller's business. What was written is on the disk after OpenFile::sync(); that a
// name exists, is gone or was renamed, after Files::sync_folder().
//
// One thread per OpenFile; Files from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace pagezip {

struct IoResult {
  int64_t bytes = 0;
  int error = 0;
};

class OpenFile {
 public:
  OpenFile() = default;
  virtual ~OpenFile() = default;  // closes it
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  /// Fewer bytes than asked for aren't an error; none are the end of the file.
  virtual IoResult read_at(int64_t offset, std::span<std::byte> target) = 0;
  /// Fewer bytes than asked for aren't an error.
  virtual IoResult write_at(int64_t offset, std::span<const std::byte> bytes) = 0;
  virtual int sync() = 0;
};

enum class OpenMode : uint8_t {
  kRead,
  kCreate,  // for writing; fails with EEXIST if the name is taken
  kUpdate,  // for reading and writing
  kLock,    // as long as it is open nobody else can open it so (EWOULDBLOCK); created if missing
};

struct Opened {
  std::unique_ptr<OpenFile> file;  // null if there was an error
  int64_t bytes = 0;               // of the file
  bool is_regular = true;          // no folder, pipe or device
  int error = 0;
};

class Files {
 public:
  Files() = default;
  virtual ~Files() = default;
  Files(const Files&) = delete;
  Files& operator=(const Files&) = delete;

  virtual Opened open(const std::string& path, OpenMode mode) = 0;
  /// Replaces what is there.
  virtual int rename(const std::string& from, const std::string& to) = 0;
  virtual int remove(const std::string& path) = 0;
  virtual int sync_folder(const std::string& folder) = 0;
  /// The names in a folder, sorted, without "." and "..".
  virtual int list(const std::string& folder, std::vector<std::string>& names) = 0;
};

/// Those of the operating system.
Files& system_files();

/// "a/b" -> "a", "/b" -> "/", "b" -> ".".
std::string folder_of(const std::string& path);

}  // namespace pagezip
