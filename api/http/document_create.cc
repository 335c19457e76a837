// Making documents.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "api/http/api_error.h"
#include "api/http/documents.h"
#include "api/http/json_text.h"
#include "api/http/target.h"
#include "engine/utf8.h"

namespace pagezip::http {
namespace {

// RFC 7240: "Prefer: wait=10".
std::chrono::milliseconds wait_of(const RequestHead& head) {
  const std::string_view prefer = head.header("prefer").value_or("");
  const size_t at = prefer.find("wait=");
  int64_t seconds = 0;
  if (at != std::string_view::npos) {
    std::from_chars(prefer.data() + at + 5, prefer.data() + prefer.size(), seconds);
  }
  return std::chrono::seconds(std::clamp<int64_t>(seconds, 0, 3600));
}

VersionSpec version_of(const DocumentForm& form, double ratio) {
  return {ratio, form.uniform, form.min_per_head};
}

}  // namespace

// About, before they are made.
int64_t Documents::bytes_of(int64_t tokens, std::span<const VersionSpec> versions) const {
  const double full = static_cast<double>(full_blocks(tokens, service_.model().model().kv_groups(),
                                                      service_.options().engine.page_tokens) *
                                          service_.geometry().block_bytes());
  double bytes = 0;
  for (const VersionSpec& version : versions) {
    bytes += full * version.keep_ratio;
  }
  return static_cast<int64_t>(bytes);
}

int64_t Documents::bytes_of(const DocumentRequest& request) const {
  const auto tokens = static_cast<int64_t>(request.prefix.size() + request.context.size());
  std::vector<VersionSpec> versions = request.versions;
  if (request.keep_full || versions.empty()) {
    versions.emplace_back();  // every pair
  }
  return bytes_of(tokens, versions);
}

// What is only in a file counts as well: a question brings it back. So does what is being made.
asio::awaitable<void> Documents::check_quota(const Tenant& tenant, const Scope& owner,
                                             int64_t wanted) {
  if (tenant.kv_bytes_max == 0 || owner.kind != Scope::Kind::kTenant) {
    co_return;
  }
  const std::vector<DocumentInfo> infos =
      co_await service_.answer(service_.engine().documents(tenant.requester()));
  std::map<std::string, int64_t> bytes_of_document;
  for (const DocumentInfo& info : infos) {
    const DocumentListing& listing = info.stored.listing;
    if (listing.scope == Scope{Scope::Kind::kTenant, tenant.name}) {
      for (const DocumentStore::Version& version : info.stored.versions) {
        bytes_of_document[listing.id] += version.blocks * service_.geometry().block_bytes();
      }
    }
  }
  for (const auto& [id, job] : jobs_) {
    if (job.tenant == tenant.name && job.task->status().state == DocumentTask::State::kWorking) {
      int64_t& bytes = bytes_of_document[id];
      bytes = std::max(bytes, job.quota_bytes);
    }
  }
  int64_t bytes = 0;
  for (const auto& [id, each] : bytes_of_document) {
    bytes += each;
  }
  if (bytes + wanted > tenant.kv_bytes_max) {
    throw ApiError(429, "insufficient_quota",
                   fmt::format("the documents of {} take {} of {} bytes, and this one about {}",
                               tenant.name, bytes, tenant.kv_bytes_max, wanted))
        .with_header("x-should-retry", "false");
  }
}

asio::awaitable<Documents::Begun> Documents::begin(const DocumentForm& form,
                                                   DocumentRequest request, const Tenant& tenant) {
  if (form.dedupe && form.extends.empty()) {
    const std::string same = co_await service_.answer(service_.engine().find_same(request));
    if (!same.empty()) {
      std::vector<VersionSpec> versions = request.versions;
      if (request.keep_full) {
        versions.emplace_back();  // every pair
      }
      co_await add_versions(tenant, same, versions, form.system);
      Begun begun;
      begun.id = same;
      begun.was_there = true;
      co_return begun;
    }
  }
  const Scope owner = request.listing.scope;
  const int64_t bytes = bytes_of(request);
  co_await check_quota(tenant, owner, bytes);
  // Nothing is awaited until the job is among `jobs_`: so the next check finds it there.
  forget_old_jobs();
  const std::string id = make_random_id("doc_");
  request.listing.id = id;
  std::vector<double> ratios = form.ratios;
  std::shared_ptr<DocumentTask> task = service_.engine().create_document(std::move(request));
  if (task == nullptr) {
    throw ApiError(429, "busy", "too many documents wait").with_header("Retry-After", "1");
  }
  DocumentJob& job = jobs_[id];
  job.tenant = tenant.name;
  job.name = form.name;
  job.metadata = form.metadata;
  job.created_s = service_.clock().unix_s();
  job.ratios = std::move(ratios);
  job.task = std::move(task);
  job.quota_bytes = owner.kind == Scope::Kind::kTenant ? bytes : 0;
  Begun begun;
  begun.id = id;
  co_return begun;
}

// Those that aren't there yet.
asio::awaitable<void> Documents::add_versions(const Tenant& tenant, const std::string& id,
                                              const std::vector<VersionSpec>& versions,
                                              const std::optional<std::string>& system) {
  const std::optional<DocumentInfo> info =
      co_await service_.answer(service_.engine().document(tenant.requester(), id));
  if (!info) {
    document_not_found(id);
  }
  if (const DocumentJob* working = job(tenant, id); working != nullptr) {
    const bool coming = std::all_of(versions.begin(), versions.end(), [&](const VersionSpec& v) {
      return std::find(working->ratios.begin(), working->ratios.end(), v.keep_ratio) !=
             working->ratios.end();
    });
    if (coming) {
      co_return;
    }
  }
  const PromptFrame frame = service_.model().frame(system, service_.clock().unix_s());
  for (const VersionSpec& version : versions) {
    const bool is_there = std::any_of(
        info->stored.versions.begin(), info->stored.versions.end(),
        [&](const DocumentStore::Version& each) {
          return version.keep_ratio == 1 ? each.identity.full || each.identity.keep_ratio == 1
                                         : each.identity == version_identity(version);
        });
    if (is_there) {
      continue;
    }
    const int64_t bytes = bytes_of(info->stored.identity->logical_length(), std::span(&version, 1));
    co_await check_quota(tenant, info->stored.listing.scope, bytes);
    const std::shared_ptr<DocumentTask> task =
        service_.engine().add_version(tenant.requester(), id, frame.repeat(), version);
    if (task == nullptr) {
      throw ApiError(429, "busy", "too many documents wait").with_header("Retry-After", "1");
    }
    // What can be cut from kept scores is there in a moment.
    for (int i = 0; i < 20 && task->status().state == DocumentTask::State::kWorking; ++i) {
      co_await sleep(service_.io(), std::chrono::milliseconds(50));
    }
    const DocumentTask::Status status = task->status();
    if (status.state == DocumentTask::State::kFailed) {
      throw ApiError(409, "version_failed", status.error);
    }
  }
}

DocumentRequest Documents::request_of(const DocumentForm& form, const Tenant& tenant) const {
  const PromptFrame frame = service_.model().frame(form.system, service_.clock().unix_s());
  DocumentRequest request;
  request.tenant = tenant.name;
  request.groups = tenant.groups;
  request.listing.name = form.name;
  request.listing.metadata = form.metadata;
  request.listing.ttl_s = form.ttl_s;
  request.listing.pinned = form.pinned;
  request.listing.scope = scope_of(tenant, form.group);
  request.parent = form.extends;
  if (form.extends.empty()) {
    request.prefix.assign(frame.prefix().begin(), frame.prefix().end());
  }
  request.context = frame.document(form.content);
  request.prompts = frame.repeat();
  for (const double ratio : form.ratios) {
    request.versions.push_back(version_of(form, ratio));
  }
  request.keep_full = form.keep_full;
  request.keep_scores = form.keep_scores;
  return request;
}

asio::awaitable<void> Documents::create(Exchange& exchange, const Tenant& tenant) {
  const std::string type(exchange.head().header("content-type").value_or("application/json"));
  const std::string kind = lower(type.substr(0, type.find(';')));
  if (kind != "application/json" && kind != "multipart/form-data") {
    throw ApiError(415, "unsupported_media_type",
                   "a document comes as application/json or multipart/form-data");
  }
  const std::optional<std::string> key = IdempotencyKeys::key_of(exchange.head());
  const std::string body = co_await exchange.read_body(service_.options().body_bytes_max());
  std::optional<IdempotencyKeys::Claim> claim;
  if (key) {
    const std::function<IdempotencyKeys::BodyHash()> hash = [&body] {
      return IdempotencyKeys::hash_of(body);
    };
    const IdempotencyKeys::BodyHash hashed = co_await service_.on_worker(hash);
    claim.emplace(keys_, tenant.name, *key, hashed, service_.clock().now_us());
  }
  if (claim && !claim->document().empty()) {
    exchange.common_headers.emplace_back("Idempotent-Replayed", "true");
    const Begun begun{claim->document(), true, true};
    co_return co_await answer_created(exchange, tenant, begun, claim->stream());
  }
  DocumentForm form;
  const std::function<DocumentRequest()> work = [this, &form, &tenant, &body, kind, type] {
    form = kind == "application/json" ? read_document_form(parse_object(body), service_)
                                      : read_multipart_form(type, body, service_);
    return request_of(form, tenant);
  };
  DocumentRequest request = co_await service_.on_worker(work);
  const Begun begun = co_await begin(form, std::move(request), tenant);
  if (claim) {
    claim->settle(begun.id, form.stream);
  }
  co_await answer_created(exchange, tenant, begun, form.stream);
}

asio::awaitable<void> Documents::answer_created(Exchange& exchange, const Tenant& tenant,
                                                const Begun& begun, bool stream) {
  const std::string& id = begun.id;
  if (stream) {
    co_return co_await stream_events(exchange, tenant, id, true);
  }
  co_await wait_ready(exchange, tenant, id, wait_of(exchange.head()));
  const json::object document = co_await need(tenant, id);
  const json::string& status = document.at("status").get_string();
  if (status == "failed") {
    const json::value& error = document.at("error");
    throw ApiError(
        422, "document_failed",
        error.is_null() ? "the document failed" : std::string(error.at("message").get_string()));
  }
  const bool is_coming = status != "ready" && !begun.replayed;
  Reply reply = document_reply(is_coming ? 202 : begun.was_there ? 200 : 201, document);
  if (is_coming) {
    reply.headers.emplace_back("Retry-After", "2");
  }
  co_await exchange.send(std::move(reply));
}

asio::awaitable<void> Documents::wait_ready(Exchange& exchange, const Tenant& tenant,
                                            const std::string& id, std::chrono::milliseconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  // What is wrong with a document is known after a step: worth to wait for.
  co_await sleep(service_.io(), std::chrono::milliseconds(5));
  while (std::chrono::steady_clock::now() < end) {
    const std::optional<json::object> document = co_await describe(tenant, id);
    if (!document || is_settled(*document)) {
      co_return;
    }
    if (exchange.gone()) {
      throw ClientGone();  // the document is made all the same
    }
    co_await sleep(service_.io(), kEventPause);
  }
}

}  // namespace pagezip::http
