// Taking in a document's file.
#include "paging/document_import.h"

#include <fmt/format.h>

#include <algorithm>

#include "api/http/api_error.h"
#include "api/http/documents.h"
#include "api/http/target.h"
#include "base/error.h"
#include "engine/utf8.h"
#include "paging/document_file.h"

namespace pagezip::http {
namespace {

constexpr size_t kSlice = 1 << 20;  // of a body, written at once

// What can be wrong before a byte of the body was read.
void check_head(const RequestHead& head, const Service& service, const std::string& id) {
  if (service.options().engine.folder.empty()) {
    throw ApiError(400, "no_document_files",
                   "import needs a server with --documents: it has no folder for files");
  }
  if (!is_document_id(id)) {
    throw ApiError(400, "invalid_value",
                   fmt::format("a document's id has 1 to {} letters, digits, '_' and '-'",
                               DocumentListing::kIdBytesMax),
                   "id");
  }
  const std::string_view type = head.header("content-type").value_or("");
  const std::string kind = lower(type.substr(0, type.find(';')));
  if (!kind.empty() && kind != "application/vnd.pagezip.document" &&
      kind != "application/octet-stream") {
    throw ApiError(415, "unsupported_media_type",
                   "a document's file comes as application/vnd.pagezip.document");
  }
}

[[noreturn]] void fail_corrupt(const std::string& why) {
  throw ApiError(422, "corrupt_document", "the document's file " + why);
}

// A step on a file of the folder; clients are told its errors without our paths.
template <typename Step>
auto step_in(const std::string& folder, const Step& step) {
  try {
    return step();
  } catch (const Error& error) {
    std::string why = error.what();
    if (const size_t path = why.find(folder); path != std::string::npos) {
      const size_t behind = why.find(": ", path + folder.size());
      why = behind == std::string::npos ? "can't be read" : why.substr(behind + 2);
    }
    if (error.kind() == ErrorKind::kModelFile) {
      fail_corrupt(why);
    }
    throw ApiError(500, "server_error", "the document's file can't be kept: " + why);
  }
}

// Whether this server's model can read its pairs. A whole file may still say what can't be.
void check_fit(const DocumentHeader& header, const Service& service) {
  const LoadedModel& model = service.model();
  const std::string difference =
      why_unfit(header.identity.shape,
                make_kv_shape(model.identity(), model.model().kv_groups(), service.geometry()));
  if (!difference.empty()) {
    throw ApiError(409, "model_mismatch", "the document does not fit: " + difference);
  }
  const auto& metadata = header.listing.metadata;
  if (!is_valid_utf8(header.listing.name) ||
      !std::all_of(metadata.begin(), metadata.end(), [](const auto& pair) {
        return is_valid_utf8(pair.first) && is_valid_utf8(pair.second);
      })) {
    fail_corrupt("has a name or metadata that is not UTF-8");
  }
  const DocumentIdentity& identity = header.identity;
  if (identity.context_ids.empty()) {
    fail_corrupt("has no text");
  }
  for (const std::vector<TokenId>* ids : {&identity.prefix_ids, &identity.context_ids}) {
    if (std::any_of(ids->begin(), ids->end(),
                    [&](TokenId id) { return id >= service.vocabulary(); })) {
      fail_corrupt("has a token that isn't in the vocabulary");
    }
  }
  const int64_t blocks = Document::blocks_for(service.geometry(), header.shape());
  if (header.logical_length() > service.engine_context_max() || blocks > service.pool_blocks()) {
    throw ApiError(413, "document_too_large",
                   fmt::format("the document takes {} of {} positions and {} of {} blocks",
                               header.logical_length(), service.engine_context_max(), blocks,
                               service.pool_blocks()));
  }
}

// "": it isn't there, or not any more.
std::string content_of(const std::string& path) {
  try {
    return read_document_header(path).content_hash;
  } catch (const Error&) {
    return "";
  }
}

[[noreturn]] void fail_taken(const std::string& id) {
  throw ApiError(409, "id_taken", fmt::format("there is another document {}", id), "id");
}

}  // namespace

asio::awaitable<void> Documents::receive(Exchange& exchange,
                                         const std::shared_ptr<DocumentImport>& file) {
  std::string slice;
  bool more = true;
  while (more) {
    const std::string part = co_await exchange.read_part(service_.options().body_bytes_max());
    slice += part;
    more = !part.empty();
    if (slice.size() >= kSlice || !more) {
      const std::function<void()> write = [this, file, bytes = std::move(slice)] {
        step_in(service_.options().engine.folder,
                [&] { file->append(std::as_bytes(std::span(bytes))); });
      };
      co_await service_.on_worker(write);
      slice.clear();
    }
  }
}

// Whether the tenant has put the very same there before. Throws ApiError(409) if it is another.
asio::awaitable<bool> Documents::is_there(const Tenant& tenant, const DocumentListing& listing,
                                          const DocumentHeader& header) {
  const std::optional<DocumentInfo> info =
      co_await service_.answer(service_.engine().document(tenant.requester(), listing.id));
  if (!info) {
    co_return false;
  }
  const std::optional<double> ratio = header.identity.version.keep_ratio;
  const std::optional<VersionDetail> detail = co_await service_.answer(
      service_.engine().version_detail(tenant.requester(), listing.id, ratio));
  std::string content;
  if (detail && info->stored.listing.scope == listing.scope) {
    const std::function<std::string()> read = [path = detail->file] { return content_of(path); };
    content = co_await service_.on_worker(read);
  }
  if (content != header.content_hash) {
    fail_taken(listing.id);
  }
  co_return true;
}

asio::awaitable<void> Documents::put_content(Exchange& exchange, const Tenant& tenant,
                                             const std::string& id) {
  check_head(exchange.head(), service_, id);
  DocumentListing listing;
  listing.id = id;
  listing.scope = scope_of(tenant, std::string(exchange.head().query_value("group").value_or("")));
  listing.imported = true;
  const EngineOptions& options = service_.options().engine;
  const FileKey key = co_await service_.answer(service_.engine().make_file_key(id));
  const std::function<std::shared_ptr<DocumentImport>()> open = [&options, key] {
    return step_in(options.folder, [&] {
      return std::make_shared<DocumentImport>(*options.files, options.folder, key);
    });
  };
  const std::shared_ptr<DocumentImport> file = co_await service_.on_worker(open);
  co_await receive(exchange, file);
  const std::function<DocumentHeader()> verify = [this, file, &options] {
    DocumentHeader header = step_in(options.folder, [&] { return file->verify(); });
    check_fit(header, service_);
    return header;
  };
  DocumentHeader header = co_await service_.on_worker(verify);
  const bool was_there = co_await is_there(tenant, listing, header);
  if (!was_there) {
    const int64_t blocks = Document::blocks_for(service_.geometry(), header.shape());
    co_await check_quota(tenant, listing.scope, blocks * service_.geometry().block_bytes());
    listing.name = header.listing.name;
    listing.metadata = header.listing.metadata;
    listing.created_s = service_.clock().unix_s();
    header.listing = listing;
    const std::function<void()> commit = [file, listing, &options] {
      step_in(options.folder, [&] { file->commit(listing); });
    };
    co_await service_.on_worker(commit);
    switch (co_await service_.answer(service_.engine().import_document(key, header))) {
      case DocumentStore::Added::kExists:
        fail_taken(id);
      case DocumentStore::Added::kTooMany:
        throw ApiError(429, "insufficient_storage",
                       "there are too many documents, or too many bytes of their files")
            .with_header("x-should-retry", "false");
      case DocumentStore::Added::kAdded:
        file->keep();
    }
  }
  const json::object document = co_await need(tenant, id);
  Reply reply = document_reply(was_there ? 200 : 201, document);
  co_await exchange.send(std::move(reply));
}

}  // namespace pagezip::http
