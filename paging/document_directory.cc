#include "paging/document_directory.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/mutant.h"
#include "paging/document_file_format.h"
#include "paging/file_io.h"

namespace pagezip {
namespace {

constexpr std::string_view kSuffix = ".pgz";
constexpr std::string_view kAsideSuffix = ".damaged";
constexpr const char* kLockName = "/.lock";

std::optional<FileKey> key_of(std::string_view name) {
  if (!name.ends_with(kSuffix)) {
    return std::nullopt;
  }
  name.remove_suffix(kSuffix.size());
  const size_t dot = name.rfind('.');
  if (dot == std::string_view::npos || !is_document_id(name.substr(0, dot))) {
    return std::nullopt;
  }
  FileKey key{std::string(name.substr(0, dot)), 0};
  const std::string_view number = name.substr(dot + 1);
  std::from_chars(number.data(), number.data() + number.size(), key.version);
  if (std::to_string(key.version) != number) {
    return std::nullopt;
  }
  return key;
}

// What a temporary of AtomicFile is called.
bool is_temporary(const std::string& name) {
  return name.find(std::string(kSuffix) + AtomicFile::kTemporaryMark) != std::string::npos;
}

// False for a good file of another format version. Throws Error(kRuntime).
bool is_of_our_version(const InputFile& file) {
  const document_file::Preamble good;
  document_file::Preamble found;
  if (file.size() < static_cast<int64_t>(sizeof(found))) {
    return true;  // or what is left of one
  }
  file.read_at(0, std::as_writable_bytes(std::span(&found, 1)));
  return std::memcmp(found.magic, good.magic, sizeof(good.magic)) != 0 ||
         found.version == good.version;
}

}  // namespace

DocumentDirectory::DocumentDirectory(Files& files, std::string folder, KvShape expected,
                                     int64_t bytes_max)
    : files_(files),
      folder_(std::move(folder)),
      expected_(std::move(expected)),
      bytes_max_(bytes_max) {
  Opened lock = files.open(folder_ + kLockName, OpenMode::kLock);
  std::vector<std::string> names;
  const int error = lock.error != 0 ? lock.error : files.list(folder_, names);
  if (error != 0) {
    throw Error(ErrorKind::kUsage,
                "cannot keep documents in " + folder_ + ": " +
                    (error == EWOULDBLOCK ? "another process does" : std::strerror(error)));
  }
  lock_ = std::move(lock.file);
  for (const std::string& name : names) {
    scan(name);
  }
  std::sort(found_.begin(), found_.end(),
            [](const File& a, const File& b) { return a.key < b.key; });
}

void DocumentDirectory::scan(const std::string& name) {
  if (MUTANT(kTornFile) && is_temporary(name)) {
    const std::string whole = name.substr(0, name.find(kSuffix) + kSuffix.size());
    files_.rename(folder_ + "/" + name, folder_ + "/" + whole);
    return scan(whole);
  }
  if (is_temporary(name)) {
    const int error = files_.remove(folder_ + "/" + name);
    add_finding(error == 0 ? Finding::Action::kRemoved : Finding::Action::kLeftAlone, name,
                "was not finished");
    return;
  }
  if (!name.ends_with(kSuffix)) {
    return;  // not of ours, or set aside before
  }
  const auto key = key_of(name);
  if (!key) {
    add_finding(Finding::Action::kLeftAlone, name, "its name is not ID.NUMBER.pgz");
    return;
  }
  std::optional<DocumentHeader> header = read_header(*key);
  if (!header) {
    return;
  }
  std::string difference = why_unfit(header->identity.shape, expected_);
  if (difference.empty() && header->listing.id != key->id) {
    difference = "lists itself as document '" + header->listing.id + "'";
  }
  if (!difference.empty()) {
    add_finding(Finding::Action::kLeftAlone, name, "does not fit: " + difference);
    return;
  }
  sizes_[*key] = header->file_bytes;
  bytes_ += header->file_bytes;
  found_.push_back({*key, std::move(*header)});
}

std::optional<DocumentHeader> DocumentDirectory::read_header(const FileKey& key) {
  bool is_ours = false;
  try {
    const InputFile file(files_, path(key));
    is_ours = is_of_our_version(file);
    return read_document_header(file);
  } catch (const Error& error) {
    // Only what was read and is wrong is damaged; what can't be read now may be readable later.
    if (is_ours && error.kind() == ErrorKind::kModelFile) {
      set_aside(key, error.what());
    } else {
      add_finding(Finding::Action::kLeftAlone, file_name(key), error.what());
    }
  }
  return std::nullopt;
}

void DocumentDirectory::add_finding(Finding::Action action, const std::string& name,
                                    const std::string& reason) {
  findings_.push_back({action, name, reason});
}

std::string DocumentDirectory::file_name(const FileKey& key) {
  return key.id + "." + std::to_string(key.version) + std::string(kSuffix);
}

std::string DocumentDirectory::path(const FileKey& key) const {
  return folder_ + "/" + file_name(key);
}

std::unique_ptr<DocumentDirectory::Write> DocumentDirectory::write(const FileKey& key,
                                                                   DocumentImage image,
                                                                   const DocumentListing& listing) {
  CHECK(is_document_id(key.id));
  CHECK(key.id == listing.id);
  CHECK(!contains(key));
  if (image.file_bytes() > bytes_max_ - bytes_) {
    return nullptr;
  }
  return std::unique_ptr<Write>(new Write(*this, key, std::move(image), listing));
}

std::unique_ptr<DocumentFileReader> DocumentDirectory::read(const FileKey& key) {
  return std::make_unique<DocumentFileReader>(files_, path(key), expected_);
}

void DocumentDirectory::update(const FileKey& key, const DocumentListing& listing) {
  CHECK(key.id == listing.id);
  if (unsure_.contains(key)) {
    throw Error(ErrorKind::kOutput, "cannot write " + path(key) + ": an earlier change failed");
  }
  // Were another change to follow one that failed, it might overwrite the only listing on the disk.
  unsure_.insert(key);
  update_listing(files_, path(key), listing);
  unsure_.erase(key);
}

void DocumentDirectory::adopt(const FileKey& key, int64_t file_bytes) {
  CHECK(!contains(key));
  sizes_[key] = file_bytes;
  bytes_ += file_bytes;
}

void DocumentDirectory::remove(const FileKey& key) {
  const auto fail = [&](int error) {
    throw Error(ErrorKind::kOutput,
                "cannot remove " + path(key) + " for good: " + std::strerror(error));
  };
  if (const int error = files_.remove(path(key)); error != 0 && error != ENOENT) {
    fail(error);
  }
  if (const auto found = sizes_.find(key); found != sizes_.end()) {
    bytes_ -= found->second;
    sizes_.erase(found);
  }
  if (const int error = files_.sync_folder(folder_); error != 0) {
    fail(error);
  }
}

void DocumentDirectory::set_aside(const FileKey& key, const std::string& reason) {
  const std::string from = path(key);
  const bool moved = files_.rename(from, from + std::string(kAsideSuffix)) == 0;
  add_finding(moved ? Finding::Action::kSetAside : Finding::Action::kLeftAlone, file_name(key),
              reason);
  if (const auto found = sizes_.find(key); found != sizes_.end()) {
    bytes_ -= found->second;
    sizes_.erase(found);
  }
}

DocumentDirectory::Write::Write(DocumentDirectory& directory, FileKey key, DocumentImage image,
                                const DocumentListing& listing)
    : directory_(directory),
      key_(std::move(key)),
      file_bytes_(image.file_bytes()),
      writer_(directory.files_, directory.path(key_), std::move(image), listing) {
  directory_.bytes_ += file_bytes_;
}

DocumentDirectory::Write::~Write() {
  if (!durable_) {
    directory_.bytes_ -= file_bytes_;
  }
}

bool DocumentDirectory::Write::step(int64_t bytes) {
  try {
    durable_ = !writer_.step(bytes);
  } catch (const Error&) {
    // It may have its name already and not be durable: what wasn't acknowledged shouldn't be there.
    directory_.files_.remove(directory_.path(key_));
    throw;
  }
  if (durable_) {
    directory_.sizes_[key_] = file_bytes_;
  }
  return !durable_;
}

}  // namespace pagezip
