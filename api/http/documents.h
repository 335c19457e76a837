// /v1/documents: documents as a resource.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "api/http/exchange.h"
#include "api/http/idempotency_keys.h"
#include "api/http/json_fields.h"
#include "api/http/service.h"
#include "api/http/tenants.h"
#include "paging/document_import.h"

namespace pagezip::http {

/// The tokens in front of a document's own. Throws ApiError(404).
asio::awaitable<std::vector<TokenId>> document_prefix(Service& service, const Tenant& tenant,
                                                      const std::string& id);

/// What a client says of a document to be made.
struct DocumentForm {
  std::string content;
  std::optional<std::string> system;
  std::string name;
  std::map<std::string, std::string> metadata;
  std::string group;  // whose it shall be; "": the tenant's own
  std::string extends;
  std::vector<double> ratios;  // below 1
  bool keep_full = false;
  bool uniform = false;  // every head the same
  int64_t min_per_head = 0;
  bool keep_scores = true;
  bool pinned = false;
  int64_t ttl_s = 0;
  bool stream = false;
  bool dedupe = true;
};

/// From JSON, or from multipart/form-data with a part "file". Throws ApiError(400).
DocumentForm read_document_form(const json::object& body, const Service& service);
DocumentForm read_multipart_form(std::string_view content_type, std::string_view body,
                                 const Service& service);

/// Strings under at most 16 keys. Throws ApiError(400).
std::map<std::string, std::string> read_metadata(const json::object& metadata);
/// Seconds of {"anchor": "last_active_at", "seconds": N}. Throws ApiError(400).
int64_t read_ttl(const json::object& expires_after);

/// What was begun and isn't in the engine's store, or not yet.
struct DocumentJob {
  std::string tenant;
  std::string name;
  std::map<std::string, std::string> metadata;
  int64_t created_s = 0;
  std::vector<double> ratios;
  std::shared_ptr<DocumentTask> task;
  int64_t quota_bytes = 0;  // about what it will take of its tenant's quota
  bool cancelled = false;
};

/// A document as clients see it. `info` or `job` may be null, but not both.
json::object document_json(const std::string& id, const DocumentInfo* info, const DocumentJob* job,
                           const Service& service);

// Small things that the parts of Documents share.
/// Blocks of all pairs that questions see: of sliding groups those of the last window.
int64_t full_blocks(int64_t tokens, const std::vector<KvGroup>& groups, int64_t page_tokens);
[[noreturn]] void document_not_found(const std::string& id);
std::string content_hash(std::string_view text);
/// Headers and body of a reply that shows it.
Reply document_reply(int status, const json::object& document);
std::string etag_of(const json::object& document, const std::string& text);
/// Whose a new document is; `group` may be empty. Throws ApiError(403).
Scope scope_of(const Tenant& tenant, const std::string& group);
asio::awaitable<void> sleep(asio::io_context& io, std::chrono::milliseconds time);
/// Throws ApiError.
asio::awaitable<json::object> read_json(Exchange& exchange, Service& service);
/// Nothing more will happen to it by itself.
bool is_settled(const json::object& document);
inline constexpr std::chrono::milliseconds kEventPause{100};

class Documents {
 public:
  explicit Documents(Service& service) : service_(service) {}

  // Handlers; each answers the exchange.
  asio::awaitable<void> create(Exchange& exchange, const Tenant& tenant);
  asio::awaitable<void> list(Exchange& exchange, const Tenant& tenant);
  asio::awaitable<void> get(Exchange& exchange, const Tenant& tenant, const std::string& id);
  asio::awaitable<void> change(Exchange& exchange, const Tenant& tenant, const std::string& id);
  asio::awaitable<void> cancel(Exchange& exchange, const Tenant& tenant, const std::string& id);
  asio::awaitable<void> remove(Exchange& exchange, const Tenant& tenant, const std::string& id);
  asio::awaitable<void> events(Exchange& exchange, const Tenant& tenant, const std::string& id);
  asio::awaitable<void> all_events(Exchange& exchange, const Tenant& tenant);
  asio::awaitable<void> retention(Exchange& exchange, const Tenant& tenant, const std::string& id);
  asio::awaitable<void> content(Exchange& exchange, const Tenant& tenant, const std::string& id);
  asio::awaitable<void> put_content(Exchange& exchange, const Tenant& tenant,
                                    const std::string& id);
  asio::awaitable<void> query(Exchange& exchange, const Tenant& tenant, const std::string& id);

 private:
  using Time = std::chrono::steady_clock::time_point;

  asio::awaitable<std::optional<json::object>> describe(const Tenant& tenant,
                                                        const std::string& id);
  asio::awaitable<json::object> need(const Tenant& tenant, const std::string& id);
  asio::awaitable<std::vector<json::object>> describe_all(const Tenant& tenant);
  /// Throws ApiError(429) if the tenant's documents and `wanted` bytes for a document of `owner`
  /// are more than it may have. What belongs to a group counts for nobody.
  asio::awaitable<void> check_quota(const Tenant& tenant, const Scope& owner, int64_t wanted);
  int64_t bytes_of(const DocumentRequest& request) const;
  int64_t bytes_of(int64_t tokens, std::span<const VersionSpec> versions) const;
  struct Begun {
    std::string id;
    bool was_there = false;
    bool replayed = false;  // by its Idempotency-Key
  };
  DocumentRequest request_of(const DocumentForm& form, const Tenant& tenant) const;
  asio::awaitable<Begun> begin(const DocumentForm& form, DocumentRequest request,
                               const Tenant& tenant);
  asio::awaitable<void> add_versions(const Tenant& tenant, const std::string& id,
                                     const std::vector<VersionSpec>& versions,
                                     const std::optional<std::string>& system);
  asio::awaitable<void> answer_created(Exchange& exchange, const Tenant& tenant, const Begun& begun,
                                       bool stream);
  asio::awaitable<void> wait_ready(Exchange& exchange, const Tenant& tenant, const std::string& id,
                                   std::chrono::milliseconds time);
  asio::awaitable<void> stream_events(Exchange& exchange, const Tenant& tenant,
                                      const std::string& id, bool until_ready);
  asio::awaitable<void> receive(Exchange& exchange, const std::shared_ptr<DocumentImport>& file);
  asio::awaitable<bool> is_there(const Tenant& tenant, const DocumentListing& listing,
                                 const DocumentHeader& header);
  DocumentJob* job(const Tenant& tenant, const std::string& id);
  void forget_old_jobs();

  Service& service_;
  std::map<std::string, DocumentJob> jobs_;  // by document
  IdempotencyKeys keys_;
};

}  // namespace pagezip::http
