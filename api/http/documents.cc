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

// Whether If-Match names this revision. Progress alone is no change.
bool matches(std::string_view header, uint64_t revision) {
  return header == "*" || header.starts_with(fmt::format("\"{}-", revision));
}

// Whether all that the query asks for as metadata[KEY]=VALUE is there.
bool has_metadata(const json::object& metadata, const std::vector<Header>& query) {
  return std::all_of(query.begin(), query.end(), [&](const Header& asked) {
    const std::string_view name = asked.first;
    if (!name.starts_with("metadata[") || !name.ends_with("]")) {
      return true;
    }
    const json::value* value = metadata.if_contains(name.substr(9, name.size() - 10));
    return value != nullptr && std::string_view(value->get_string()) == asked.second;
  });
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

std::string etag_of(const json::object& document, const std::string& text) {
  return fmt::format("\"{}-{}\"", document.at("revision").to_number<uint64_t>(),
                     content_hash(text));
}

Reply document_reply(int status, const json::object& document) {
  Reply reply = json_text(to_text(document));
  reply.status = status;
  reply.headers.emplace_back("Location",
                             "/v1/documents/" + std::string(document.at("id").get_string()));
  reply.headers.emplace_back("ETag", etag_of(document, reply.body));
  return reply;
}

Scope scope_of(const Tenant& tenant, const std::string& group) {
  if (group.empty()) {
    return {Scope::Kind::kTenant, tenant.name};
  }
  if (std::find(tenant.groups.begin(), tenant.groups.end(), group) == tenant.groups.end()) {
    throw ApiError(403, "not_in_group",
                   fmt::format("{} is not in the group {}", tenant.name, to_printable(group)),
                   "group");
  }
  return {Scope::Kind::kGroup, group};
}

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
  std::erase_if(all, [&](const json::object& document) {
    return !has_metadata(document.at("metadata").get_object(), head.query);
  });
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
  if (const json::object* metadata = fields.object("metadata")) {
    change.metadata = read_metadata(*metadata);
  }
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
