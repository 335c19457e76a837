#include "paging/document_import.h"

#include <cstdint>
#include <cstring>
#include <vector>

#include "paging/document_directory.h"
#include "paging/document_file_format.h"

namespace pagezip {

DocumentImport::DocumentImport(Files& files, const std::string& folder, const FileKey& key)
    : files_(files), path_(folder + "/" + DocumentDirectory::file_name(key)), file_(files, path_) {}

DocumentImport::~DocumentImport() {
  if (committed_ && !kept_) {
    files_.remove(path_);
  }
}

void DocumentImport::append(std::span<const std::byte> bytes) {
  file_.write_at(bytes_, bytes);
  bytes_ += static_cast<int64_t>(bytes.size());
}

DocumentHeader DocumentImport::verify() const {
  return verify_document(InputFile(files_, file_.temporary()));
}

void DocumentImport::commit(const DocumentListing& listing) {
  // The second slot is empty, as in a file that has just been made.
  std::vector<std::byte> slots(2 * sizeof(document_file::ListingSlot));
  const document_file::ListingSlot slot = document_file::encode_listing(listing);
  std::memcpy(slots.data(), &slot, sizeof(slot));
  file_.write_at(document_file::kSlotsBegin, slots);
  committed_ = true;  // as far as it comes
  file_.commit();
}

}  // namespace pagezip
