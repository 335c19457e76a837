// A document file that comes from outside, on its way into the folder of a DocumentDirectory.
//
// Its bytes are untrusted. They are written beside the other files as a temporary, which nobody
// serves and the next start removes; read back and verified; and only then get a new listing and a
// name. Dropped before keep(), the file was never there.
//
// Thread rule: one thread at a time; that need be neither the engine's nor the disk's.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "paging/document_file.h"
#include "paging/document_identity.h"
#include "paging/file_io.h"
#include "paging/files.h"

namespace pagezip {

class DocumentImport {
 public:
  /// Borrows `files`. Throws Error(kOutput). REQUIRES: nobody else writes that key.
  DocumentImport(Files& files, const std::string& folder, const FileKey& key);
  ~DocumentImport();
  DocumentImport(const DocumentImport&) = delete;
  DocumentImport& operator=(const DocumentImport&) = delete;

  /// The next bytes of the file. Throws Error(kOutput).
  void append(std::span<const std::byte> bytes);
  /// All bytes are there: throws Error(kModelFile) unless they are a whole and undamaged document
  /// file, of whatever model.
  DocumentHeader verify() const;
  /// Nothing of the old listing stays. The file is durable under its name then. Throws
  /// Error(kOutput). REQUIRES: verify() returned; is_valid(listing).
  void commit(const DocumentListing& listing);
  /// The file is somebody's now. REQUIRES: commit() returned.
  void keep() { kept_ = true; }

 private:
  Files& files_;
  std::string path_;
  AtomicFile file_;
  int64_t bytes_ = 0;
  bool committed_ = false;
  bool kept_ = false;
};

}  // namespace pagezip
