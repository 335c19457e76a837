// Documents as streams of events: what a client sees of one, each time it changes.
//
// An event's id is the hash of what it says. So a client that comes back with Last-Event-ID gets
// the state if it is another one, also after a restart.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "api/http/api_error.h"
#include "api/http/documents.h"
#include "api/http/json_text.h"

namespace pagezip::http {
namespace {

constexpr std::chrono::milliseconds kListPause{500};

std::string event_text(const char* name, const std::string& data) {
  return fmt::format("id: {}\nevent: {}\ndata: {}\n\n", content_hash(data), name, data);
}

Reply event_stream() {
  return {
      200, "", "text/event-stream", {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}}};
}

std::string gone_event(const std::string& id) {
  return event_text("document.evicted", to_text(json::object{{"id", id}}));
}

const char* event_name(const json::object& document, bool is_first) {
  const json::string& status = document.at("status").get_string();
  if (status == "ready") {
    return is_first || document.at("progress").is_null() ? "document.ready" : "document.progress";
  }
  return status == "queued"      ? "document.queued"
         : status == "failed"    ? "document.failed"
         : status == "cancelled" ? "document.cancelled"
         : status == "expired"   ? "document.evicted"
                                 : "document.progress";
}

}  // namespace

asio::awaitable<void> Documents::stream_events(Exchange& exchange, const Tenant& tenant,
                                               const std::string& id, bool until_ready) {
  std::optional<json::object> document = co_await need(tenant, id);
  Reply head = event_stream();
  co_await exchange.start_stream(std::move(head));
  if (exchange.head().method == "HEAD") {
    co_return;
  }
  std::string last(exchange.head().header("last-event-id").value_or(""));
  auto quiet_since = std::chrono::steady_clock::now();
  bool is_first = true;
  while (true) {
    if (!document) {
      co_await exchange.write(gone_event(id));
      break;
    }
    const std::string data = to_text(*document);
    const bool is_news = content_hash(data) != last;
    if (is_news) {
      last = content_hash(data);
      quiet_since = std::chrono::steady_clock::now();
      co_await exchange.write(event_text(event_name(*document, is_first), data));
    } else if (std::chrono::steady_clock::now() - quiet_since >
               std::chrono::duration<double>(service_.options().ping_interval_s)) {
      quiet_since = std::chrono::steady_clock::now();
      co_await exchange.write(": ping\n\n");
    }
    is_first = false;
    if (until_ready && is_settled(*document)) {
      break;
    }
    if (exchange.gone() || service_.phase() == Service::Phase::kDraining) {
      break;
    }
    co_await sleep(service_.io(), kEventPause);
    document = co_await describe(tenant, id);
  }
  co_await exchange.end_stream();
}

asio::awaitable<void> Documents::events(Exchange& exchange, const Tenant& tenant,
                                        const std::string& id) {
  co_await stream_events(exchange, tenant, id, false);
}

asio::awaitable<void> Documents::all_events(Exchange& exchange, const Tenant& tenant) {
  Reply head = event_stream();
  co_await exchange.start_stream(std::move(head));
  if (exchange.head().method == "HEAD") {
    co_return;
  }
  std::map<std::string, std::string> seen;  // hash of what was told of each
  auto quiet_since = std::chrono::steady_clock::now();
  while (!exchange.gone() && service_.phase() != Service::Phase::kDraining) {
    std::map<std::string, std::string> now;
    std::string text;
    const std::vector<json::object> all = co_await describe_all(tenant);
    for (const json::object& document : all) {
      const std::string id(document.at("id").get_string());
      const std::string data = to_text(document);
      now[id] = content_hash(data);
      if (const auto old = seen.find(id); old == seen.end() || old->second != now[id]) {
        text += event_text(event_name(document, old == seen.end()), data);
      }
    }
    for (const auto& [id, hash] : seen) {
      if (!now.contains(id)) {
        text += gone_event(id);
      }
    }
    seen = std::move(now);
    const auto time = std::chrono::steady_clock::now();
    if (text.empty() &&
        time - quiet_since > std::chrono::duration<double>(service_.options().ping_interval_s)) {
      text = ": ping\n\n";
    }
    if (!text.empty()) {
      quiet_since = time;
      co_await exchange.write(text);
    }
    co_await sleep(service_.io(), kListPause);
  }
  co_await exchange.end_stream();
}

}  // namespace pagezip::http
