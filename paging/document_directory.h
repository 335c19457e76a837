// The document files of one folder: the disk tier of a DocumentStore.
//
// There is no index file. A file is called ID.N.pgz (document and number of the version), and what
// lists it is in its header; both are read when the folder is opened. What a crash left behind is
// dealt with then, and reported: temporaries are removed, damaged files get another name, and files
// that don't fit (another model, another format version, a name that isn't theirs) are left alone.
// None of them is ever served.
//
// What write(), update() and remove() acknowledge survives a crash.
//
// Files that were imported (paging/document_import.h) are put there by others, and adopted.
//
// The byte budget is a bound for what lies there; which files go to make room is not decided here
// (DocumentStore::drop_files).
//
// Thread rule: one thread at a time uses a directory and what it made. No call touches the pool or
// any count, so that may be a thread for the disk; see document_file.h for what it borrows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "paging/document_file.h"
#include "paging/document_identity.h"
#include "paging/files.h"

namespace pagezip {

class DocumentDirectory {
 public:
  struct File {
    FileKey key;
    DocumentHeader header;
  };
  /// Something in the folder that isn't served.
  struct Finding {
    enum class Action : uint8_t { kRemoved, kSetAside, kLeftAlone };
    Action action = Action::kLeftAlone;
    std::string name;    // in the folder
    std::string reason;  // one line
  };
  class Write;

  /// Opens a folder that exists; no other process can until this ends. Borrows `files`. Throws
  /// Error(kUsage) if it can't be opened or is in use.
  DocumentDirectory(Files& files, std::string folder, KvShape expected, int64_t bytes_max);
  DocumentDirectory(const DocumentDirectory&) = delete;
  DocumentDirectory& operator=(const DocumentDirectory&) = delete;

  /// Of a file in its folder.
  static std::string file_name(const FileKey& key);

  /// What was there when the folder was opened, by key; a second call returns nothing. Pairs and
  /// scores are not verified before they are read.
  std::vector<File> take_files() { return std::exchange(found_, {}); }
  const std::vector<Finding>& findings() const { return findings_; }

  /// Of all files, those being written included.
  int64_t bytes() const { return bytes_; }
  /// How far bytes() is above the budget: only after it was lowered.
  int64_t excess_bytes() const { return std::max<int64_t>(0, bytes_ - bytes_max_); }
  bool contains(const FileKey& key) const { return sizes_.contains(key); }

  /// Starts to write a file. Null if it doesn't fit the budget now. Throws Error(kOutput).
  /// REQUIRES: no such file is there or being written; listing.id is the key's.
  std::unique_ptr<Write> write(const FileKey& key, DocumentImage image,
                               const DocumentListing& listing);
  /// Throws as DocumentFileReader. After Error(kModelFile), from here or from a step, the file is
  /// worth nothing: set_aside() it.
  std::unique_ptr<DocumentFileReader> read(const FileKey& key);
  /// Throws as update_listing(). After an error this file's listing can't change any more.
  void update(const FileKey& key, const DocumentListing& listing);
  /// Counts a file that was put into the folder by somebody else, under a key of ours.
  void adopt(const FileKey& key, int64_t file_bytes);
  /// No error if it is gone already. Throws Error(kOutput): it may come back after a crash then,
  /// and another call may help.
  void remove(const FileKey& key);
  /// Gives a damaged file a name under which it isn't read again.
  void set_aside(const FileKey& key, const std::string& reason);

 private:
  std::string path(const FileKey& key) const;
  void scan(const std::string& name);
  // Nothing, and a finding, if it can't be read.
  std::optional<DocumentHeader> read_header(const FileKey& key);
  void add_finding(Finding::Action action, const std::string& name, const std::string& reason);

  Files& files_;
  std::string folder_;
  KvShape expected_;
  int64_t bytes_max_;
  std::unique_ptr<OpenFile> lock_;
  std::map<FileKey, int64_t> sizes_;  // of files that are there
  std::set<FileKey> unsure_;          // whose last change failed
  int64_t bytes_ = 0;
  std::vector<File> found_;
  std::vector<Finding> findings_;
};

/// A file being written. Dropped before its last step, it was never there.
class DocumentDirectory::Write {
 public:
  ~Write();
  Write(const Write&) = delete;
  Write& operator=(const Write&) = delete;

  /// As DocumentFileWriter::step.
  bool step(int64_t bytes);
  int64_t file_bytes() const { return file_bytes_; }

 private:
  friend class DocumentDirectory;
  Write(DocumentDirectory& directory, FileKey key, DocumentImage image,
        const DocumentListing& listing);

  DocumentDirectory& directory_;
  FileKey key_;
  int64_t file_bytes_;
  DocumentFileWriter writer_;
  bool durable_ = false;
};

}  // namespace pagezip
