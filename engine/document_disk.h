// Does the file work of a DocumentStore: writes, changes, removes and reads document files, in
// slices of bytes.
//
// Either on a thread of its own, which runs at low priority so that it doesn't disturb the engine,
// or in slices that run when the host asks for them (tests, and hosts that drive the engine).
//
// Thread rule: the engine thread uses all of it; run_slice() only while no thread was started.
// Documents come back with what is done, so that only the engine thread ever unpins their pages.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "paging/document_directory.h"
#include "paging/document_store.h"

namespace pagezip {

class DocumentDisk {
 public:
  struct Done {
    enum class Kind : uint8_t { kWritten, kChanged, kRead };
    Kind kind = Kind::kChanged;
    FileKey key;
    std::string error;  // one line; empty: it worked
    // What was written, or has been read:
    std::shared_ptr<const Document> document;
    std::shared_ptr<const ScoreSet> scores;
  };

  /// Opens the folder (DocumentDirectory). `wake` is called, from the disk's thread, when something
  /// is done.
  DocumentDisk(Files& files, const std::string& folder, const KvShape& expected, int64_t bytes_max,
               std::function<void()> wake);
  /// What was begun and isn't done is as if it had never begun.
  ~DocumentDisk();
  DocumentDisk(const DocumentDisk&) = delete;
  DocumentDisk& operator=(const DocumentDisk&) = delete;

  /// As DocumentDirectory. REQUIRES: nothing was posted yet.
  std::vector<DocumentDirectory::File> take_files() { return directory_.take_files(); }
  /// What else was in the folder when it was opened.
  const std::vector<DocumentDirectory::Finding>& findings() const { return findings_; }

  void post(DocumentStore::FileWork work);
  /// Reads a file into a blank that was made for it.
  void post_read(const FileKey& key, std::shared_ptr<const Document> blank);
  std::vector<Done> take_done();
  /// Nothing is posted that take_done() hasn't returned.
  bool idle() const;

  /// False if there was nothing to do.
  bool run_slice();
  void start();
  bool has_thread() const { return thread_.joinable(); }

 private:
  struct Task {
    std::unique_ptr<DocumentStore::FileWork> work;  // null: a read
    FileKey key;
    std::shared_ptr<const Document> blank;
  };
  // What is under way.
  struct Current {
    Task task;
    std::unique_ptr<DocumentDirectory::Write> write;
    std::unique_ptr<DocumentFileReader> reader;
  };

  void push(Task task);
  void begin(Task task);
  bool step();
  bool step_write();
  bool step_read();
  void finish(Done::Kind kind, const std::string& error);

  DocumentDirectory directory_;
  const std::vector<DocumentDirectory::Finding> findings_;
  const std::function<void()> wake_;
  std::unique_ptr<Current> current_;  // of whoever runs slices; or null

  mutable std::mutex mutex_;
  std::condition_variable posted_;
  std::deque<Task> tasks_;  // guarded by mutex_
  std::vector<Done> done_;  // likewise
  int64_t open_ = 0;        // likewise: tasks that take_done() hasn't returned
  bool stopping_ = false;   // likewise
  std::thread thread_;
};

}  // namespace pagezip
