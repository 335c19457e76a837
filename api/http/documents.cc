#include "api/http/documents.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <charconv>

#include "api/http/api_error.h"
#include "api/http/json_text.h"
#include "api/http/target.h"
#include "engine/utf8.h"

namespace pagezip::http {
namespace {

constexpr int64_t kJobsKeptSeconds = 3600;  // that ended badly, so that their owners can read why

std::string etag_of(const json::object& document, const std::string& text) {
  return fmt::format("\"{}-{}\"", document.at("revision").to_number<uint64_t>(),
                     content_hash(text));
}

// Whether If-Match names this revision. Progress alone is no change.
bool matches(std::string_view header, uint64_t revision) {
  return header == "*" || header.starts_with(fmt::format("\"{}-", revision));
}

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

int64_t integer_query(const RequestHead& head, std::string_view name, int64_t min, int64_t max,
                      int64_t otherwise) {
  const auto text = head.query_value(name);
  if (!text) {
    return otherwise;
  }
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc() || end != text->data() + text->size() || value < min || value > max) {
    throw ApiError(400, "invalid_value",
                   fmt::format("'{}' must be a whole number from {} to {}", name, min, max),
                   std::string(name));
  }
  return value;
}

}  // namespace

asio::awaitable<json::object> read_json(Exchange& exchange, Service& service) {
  const std::string body = co_await exchange.read_body(service.options().body_bytes_max());
  co_return parse_object(body);
}

void document_not_found(const std::string& id) {
  throw ApiError(404, "document_not_found", fmt::format("no document {}", to_printable(id)));
}

std::string content_hash(std::string_view text) {
  return fmt::format("{:016x}", XXH3_64bits(text.data(), text.size()));
}

asio::awaitable<void> sleep(asio::io_context& io, std::chrono::milliseconds time) {
  asio::steady_timer timer(io, time);
  co_await timer.async_wait(asio::use_awaitable);
}

bool is_settled(const json::object& document) {
  const json::string& status = document.at("status").get_string();
  return status == "ready" || status == "failed" || status == "cancelled" || status == "expired";
}

asio::awaitable<std::vector<TokenId>> document_prefix(Service& service, const Tenant& tenant,
                                                      const std::string& id) {
  const std::optional<DocumentInfo> info =
      co_await service.answer(service.engine().document(tenant.requester(), id));
  if (!info) {
    document_not_found(id);
  }
  co_return info->stored.identity->prefix_ids;
}

// ---- what there is ----

DocumentJob* Documents::job(const Tenant& tenant, const std::string& id) {
  const auto found = jobs_.find(id);
  return found == jobs_.end() || found->second.tenant != tenant.name ? nullptr : &found->second;
}

void Documents::forget_old_jobs() {
  const int64_t now = service_.clock().unix_s();
  std::erase_if(jobs_, [&](const auto& each) {
    const DocumentTask::Status status = each.second.task->status();
    return status.state == DocumentTask::State::kDone ||
           (status.state == DocumentTask::State::kFailed &&
            now - each.second.created_s > kJobsKeptSeconds);
  });
}

asio::awaitable<std::optional<json::object>> Documents::describe(const Tenant& tenant,
                                                                 const std::string& id) {
  const std::optional<DocumentInfo> info =
      co_await service_.answer(service_.engine().document(tenant.requester(), id));
  const DocumentJob* known = job(tenant, id);
  if (!info && known == nullptr) {
    co_return std::nullopt;
  }
  co_return document_json(id, info ? &*info : nullptr, known, service_);
}

asio::awaitable<json::object> Documents::need(const Tenant& tenant, const std::string& id) {
  std::optional<json::object> document = co_await describe(tenant, id);
  if (!document) {
    document_not_found(id);
  }
  co_return std::move(*document);
}

asio::awaitable<std::vector<json::object>> Documents::describe_all(const Tenant& tenant) {
  forget_old_jobs();
  const std::vector<DocumentInfo> infos =
      co_await service_.answer(service_.engine().documents(tenant.requester()));
  std::vector<json::object> all;
  std::map<std::string, const DocumentInfo*> known;
  for (const DocumentInfo& info : infos) {
    const std::string& id = info.stored.listing.id;
    known[id] = &info;
    all.push_back(document_json(id, &info, job(tenant, id), service_));
  }
  for (const auto& [id, each] : jobs_) {
    if (each.tenant == tenant.name && !known.contains(id)) {
      all.push_back(document_json(id, nullptr, &each, service_));
    }
  }
  // By age, the oldest first.
  std::sort(all.begin(), all.end(), [](const json::object& a, const json::object& b) {
    const auto key = [](const json::object& o) {
      return std::make_pair(o.at("created_at").to_number<int64_t>(),
                            std::string_view(o.at("id").get_string()));
    };
    return key(a) < key(b);
  });
  co_return all;
}

asio::awaitable<void> Documents::get(Exchange& exchange, const Tenant& tenant,
                                     const std::string& id) {
  const json::object document = co_await need(tenant, id);
  std::string text = to_text(document);
  Reply reply;
  reply.headers.emplace_back("ETag", etag_of(document, text));
  if (exchange.head().header("if-none-match") == reply.headers[0].second) {
    reply.status = 304;
  } else {
    reply.body = std::move(text);
  }
  co_await exchange.send(std::move(reply));
}

asio::awaitable<void> Documents::list(Exchange& exchange, const Tenant& tenant) {
  const RequestHead& head = exchange.head();
  const auto limit = static_cast<size_t>(integer_query(head, "limit", 1, 1000, 100));
  const std::string_view order = head.query_value("order").value_or("desc");
  if (order != "asc" && order != "desc") {
    throw ApiError(400, "invalid_value", "'order' must be asc or desc", "order");
  }
  std::vector<json::object> all = co_await describe_all(tenant);
  if (const auto status = head.query_value("status")) {
    std::erase_if(all, [&](const json::object& document) {
      return std::string_view(document.at("status").get_string()) != *status;
    });
  }
  if (order == "desc") {
    std::reverse(all.begin(), all.end());
  }
  size_t begin = 0;
  if (const auto after = head.query_value("after")) {
    const auto found = std::find_if(all.begin(), all.end(), [&](const json::object& document) {
      return std::string_view(document.at("id").get_string()) == *after;
    });
    if (found == all.end()) {
      throw ApiError(400, "invalid_value", "'after' is no document of this list", "after");
    }
    begin = static_cast<size_t>(found - all.begin()) + 1;
  }
  const size_t end = std::min(all.size(), begin + limit);
  json::object reply;
  json::array data;
  for (size_t i = begin; i < end; ++i) {
    data.push_back(std::move(all[i]));
  }
  reply["object"] = "list";
  reply["first_id"] = data.empty() ? json::value(nullptr) : data.front().at("id");
  reply["last_id"] = data.empty() ? json::value(nullptr) : data.back().at("id");
  reply["has_more"] = end < all.size();
  reply["data"] = std::move(data);
  Reply answer = json_text(to_text(reply));
  co_await exchange.send(std::move(answer));
}

// ---- creation ----

asio::awaitable<void> Documents::check_quota(const Tenant& tenant, const DocumentRequest& request) {
  if (tenant.kv_bytes_max == 0) {
    co_return;
  }
  const std::vector<DocumentInfo> infos =
      co_await service_.answer(service_.engine().documents(tenant.requester()));
  const int64_t block = service_.geometry().block_bytes();
  int64_t bytes = 0;
  for (const DocumentInfo& info : infos) {
    const Scope& scope = info.stored.listing.scope;
    if (scope.kind != Scope::Kind::kTenant || scope.name != tenant.name) {
      continue;
    }
    for (const DocumentStore::Version& version : info.stored.versions) {
      bytes += version.resident ? version.blocks * block : 0;
    }
  }
  const auto tokens = static_cast<int64_t>(request.prefix.size() + request.context.size());
  const double full = static_cast<double>(full_blocks(tokens, service_.model().model().kv_groups(),
                                                      service_.options().engine.page_tokens) *
                                          block);
  double wanted = request.keep_full || request.versions.empty() ? full : 0;
  for (const VersionSpec& version : request.versions) {
    wanted += full * version.keep_ratio;
  }
  if (static_cast<double>(bytes) + wanted > static_cast<double>(tenant.kv_bytes_max)) {
    throw ApiError(
        429, "insufficient_quota",
        fmt::format("the documents of {} take {} of {} bytes, and this one about {}", tenant.name,
                    bytes, tenant.kv_bytes_max, static_cast<int64_t>(wanted)))
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
  co_await check_quota(tenant, request);
  forget_old_jobs();
  const std::string id = make_random_id("doc_");
  request.listing.id = id;
  std::vector<double> ratios = form.ratios;
  std::shared_ptr<DocumentTask> task = service_.engine().create_document(std::move(request));
  if (task == nullptr) {
    throw ApiError(429, "busy", "too many documents wait").with_header("Retry-After", "1");
  }
  jobs_[id] = {tenant.name, form.name, service_.clock().unix_s(), std::move(ratios), task, false};
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

asio::awaitable<void> Documents::create(Exchange& exchange, const Tenant& tenant) {
  const std::string type(exchange.head().header("content-type").value_or("application/json"));
  const std::string kind = lower(type.substr(0, type.find(';')));
  if (kind != "application/json" && kind != "multipart/form-data") {
    throw ApiError(415, "unsupported_media_type",
                   "a document comes as application/json or multipart/form-data");
  }
  std::string body = co_await exchange.read_body(service_.options().body_bytes_max());
  DocumentForm form;
  const std::function<DocumentRequest()> work = [this, &form, &tenant, kind, type,
                                                 body = std::move(body)] {
    form = kind == "application/json" ? read_document_form(parse_object(body), service_)
                                      : read_multipart_form(type, body, service_);
    const PromptFrame frame = service_.model().frame(form.system, service_.clock().unix_s());
    DocumentRequest request;
    request.tenant = tenant.name;
    request.groups = tenant.groups;
    request.listing.name = form.name;
    request.listing.ttl_s = form.ttl_s;
    request.listing.pinned = form.pinned;
    request.listing.scope = form.group.empty() ? Scope{Scope::Kind::kTenant, tenant.name}
                                               : Scope{Scope::Kind::kGroup, form.group};
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
  };
  DocumentRequest request = co_await service_.on_worker(work);
  if (!form.group.empty() &&
      std::find(tenant.groups.begin(), tenant.groups.end(), form.group) == tenant.groups.end()) {
    throw ApiError(403, "not_in_group",
                   fmt::format("{} is not in the group {}", tenant.name, to_printable(form.group)),
                   "group");
  }
  const Begun begun = co_await begin(form, std::move(request), tenant);
  const std::string& id = begun.id;
  if (form.stream) {
    co_return co_await stream_events(exchange, tenant, id, true);
  }
  co_await wait_ready(exchange, tenant, id, wait_of(exchange.head()));
  const json::object document = co_await need(tenant, id);
  const std::string text = to_text(document);
  const json::string& status = document.at("status").get_string();
  Reply reply{
      status == "ready" ? (begun.was_there ? 200 : 201) : 202, text, "application/json", {}};
  if (status == "failed") {
    const json::value& error = document.at("error");
    throw ApiError(
        422, "document_failed",
        error.is_null() ? "the document failed" : std::string(error.at("message").get_string()));
  }
  reply.headers.emplace_back("Location", "/v1/documents/" + id);
  reply.headers.emplace_back("ETag", etag_of(document, text));
  if (reply.status == 202) {
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

// ---- changes ----

asio::awaitable<void> Documents::change(Exchange& exchange, const Tenant& tenant,
                                        const std::string& id) {
  const json::object body = co_await read_json(exchange, service_);
  const Fields fields(body);
  const json::object before = co_await need(tenant, id);
  if (const auto match = exchange.head().header("if-match");
      match && !matches(*match, before.at("revision").to_number<uint64_t>())) {
    throw ApiError(412, "revision_changed", "the document was changed meanwhile");
  }
  DocumentChange change;
  change.name = fields.text("name");
  change.pinned = fields.boolean("pinned");
  if (body.contains("expires_after")) {
    const json::object* expiry = fields.object("expires_after");
    change.ttl_s = expiry == nullptr ? 0 : read_ttl(*expiry);  // null: for ever
  }
  switch (
      co_await service_.answer(service_.engine().change_document(tenant.requester(), id, change))) {
    case ChangeAnswer::kNotFound:
      document_not_found(id);
    case ChangeAnswer::kNoRoomToPin:
      throw ApiError(409, "no_room_to_pin", "pinned documents take all the memory they may",
                     "pinned");
    case ChangeAnswer::kChanged:
      break;
  }
  if (const json::object* compression = fields.object("compression")) {
    const auto ratio = Fields(*compression, "compression").number("ratio", 0.0001, 1);
    if (ratio) {
      const std::vector<VersionSpec> wanted(1, VersionSpec{*ratio, false, 0});
      co_await add_versions(tenant, id, wanted, std::nullopt);
    }
  }
  const json::object document = co_await need(tenant, id);
  const std::string text = to_text(document);
  Reply reply;
  reply.status = document.at("progress").is_null() ? 200 : 202;
  reply.headers.emplace_back("ETag", etag_of(document, text));
  reply.body = text;
  co_await exchange.send(std::move(reply));
}

asio::awaitable<void> Documents::cancel(Exchange& exchange, const Tenant& tenant,
                                        const std::string& id) {
  co_await need(tenant, id);
  const std::optional<DocumentInfo> info =
      co_await service_.answer(service_.engine().document(tenant.requester(), id));
  DocumentJob* known = job(tenant, id);
  const std::shared_ptr<DocumentTask> task = info && info->task != nullptr ? info->task
                                             : known != nullptr            ? known->task
                                                                           : nullptr;
  if (task == nullptr || task->status().state != DocumentTask::State::kWorking) {
    throw ApiError(409, "not_in_progress", "nothing of this document is being made");
  }
  if (known != nullptr && known->task == task) {
    known->cancelled = true;
  }
  service_.engine().cancel(task->id());
  for (int i = 0; i < 200 && task->status().state == DocumentTask::State::kWorking; ++i) {
    co_await sleep(service_.io(), std::chrono::milliseconds(10));
  }
  const json::object document = co_await need(tenant, id);
  Reply answer = json_text(to_text(document));
  co_await exchange.send(std::move(answer));
}

asio::awaitable<void> Documents::remove(Exchange& exchange, const Tenant& tenant,
                                        const std::string& id) {
  const bool dropped =
      co_await service_.answer(service_.engine().drop_document(tenant.requester(), id));
  const bool known = job(tenant, id) != nullptr && jobs_.erase(id) > 0;
  if (!dropped && !known) {
    document_not_found(id);
  }
  json::object reply;
  reply["id"] = id;
  reply["object"] = "document.deleted";
  reply["deleted"] = true;
  Reply answer = json_text(to_text(reply));
  co_await exchange.send(std::move(answer));
}

}  // namespace pagezip::http
