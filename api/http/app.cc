#include "api/http/app.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "api/http/api_error.h"
#include "api/http/embedded.h"
#include "api/http/generation.h"
#include "api/http/json_text.h"
#include "api/http/page.h"
#include "engine/utf8.h"

namespace pagezip::http {
namespace {

Reply json_reply(const json::object& object) {
  return {200, to_text(object), "application/json", {}};
}

// g++ 12 can't compile initializer lists of JSON in coroutines: so they are in functions of their
// own.
Reply status_reply(const char* status) { return json_reply({{"status", status}}); }
Reply version_reply() { return json_reply({{"version", PAGEZIP_VERSION}}); }
Reply text_reply(const std::string& text) {
  return json_reply({{"prompt", text}, {"content", text}});
}

std::optional<std::string_view> key_of(const RequestHead& head) {
  static constexpr std::string_view kBearer = "Bearer ";
  if (const auto header = head.header("authorization")) {
    return header->starts_with(kBearer) ? std::optional(header->substr(kBearer.size()))
                                        : std::nullopt;
  }
  return head.header("x-api-key");
}

}  // namespace

App::App(Service& service, Tenants& tenants)
    : service_(service), tenants_(tenants), documents_(service) {
  add_routes();
  add_document_routes();
}

void App::add(const char* method, const char* pattern, Access access, Handler handler) {
  router_.add({method, pattern, access, std::move(handler)});
}

void App::add_user(const char* method, const char* pattern, TenantHandler handler) {
  add(method, pattern, Access::kUser,
      [this, handler = std::move(handler)](Exchange& exchange,
                                           const PathParts& parts) -> asio::awaitable<void> {
        service_.need_ready();
        const Tenant tenant = authenticate(exchange.head(), Access::kUser);
        co_await handler(exchange, tenant, parts);
      });
}

void App::add_routes() {
  for (const char* path : {"/health", "/v1/health", "/ping"}) {
    add("GET", path, Access::kPublic,
        [this](Exchange& exchange, const PathParts&) { return health(exchange); });
  }
  add("GET", "/ready", Access::kPublic,
      [this](Exchange& exchange, const PathParts&) { return ready(exchange); });
  add("GET", "/openapi.json", Access::kPublic, [](Exchange& exchange, const PathParts&) {
    return exchange.send({200, std::string(openapi_json()), "application/json", {}});
  });
  for (Route& route : page_routes()) {
    router_.add(std::move(route));
  }
  add("GET", "/version", Access::kUser,
      [](Exchange& exchange, const PathParts&) { return exchange.send(version_reply()); });
  add("GET", "/metrics", Access::kAdmin,
      [this](Exchange& exchange, const PathParts&) -> asio::awaitable<void> {
        service_.need_ready();
        Reply reply;
        reply.body = metrics_text(service_.engine().stats(), counts_, service_,
                                  service_.options().metrics_vllm);
        reply.content_type = "text/plain; version=0.0.4; charset=utf-8";
        co_await exchange.send(std::move(reply));
      });
  add_user("GET", "/props",
           [this](Exchange& e, const Tenant&, const PathParts&) { return props(e); });
  add_user("GET", "/state",
           [this](Exchange& e, const Tenant&, const PathParts&) { return state(e); });
  add_user("GET", "/v1/models",
           [this](Exchange& e, const Tenant&, const PathParts&) { return models(e); });
  add_user("GET", "/v1/models/{id}", [this](Exchange& e, const Tenant&, const PathParts& parts) {
    return one_model(e, parts[0]);
  });
  add_user("POST", "/tokenize",
           [this](Exchange& e, const Tenant&, const PathParts&) { return tokenize(e); });
  add_user("POST", "/detokenize",
           [this](Exchange& e, const Tenant&, const PathParts&) { return detokenize(e); });
  add_user("POST", "/apply-template",
           [this](Exchange& e, const Tenant&, const PathParts&) { return apply_template(e); });
  add_user("POST", "/v1/chat/completions/render",
           [this](Exchange& e, const Tenant& t, const PathParts&) { return render(e, t); });
  add_user("POST", "/v1/chat/completions",
           [this](Exchange& e, const Tenant& t, const PathParts&) { return chat(e, t); });
  add_user("POST", "/v1/completions",
           [this](Exchange& e, const Tenant& t, const PathParts&) { return complete(e, t); });
}

void App::add_document_routes() {
  using Member = asio::awaitable<void> (Documents::*)(Exchange&, const Tenant&);
  using MemberOfOne =
      asio::awaitable<void> (Documents::*)(Exchange&, const Tenant&, const std::string&);
  const auto add_all = [this](const char* method, const char* pattern, Member member) {
    add_user(method, pattern, [this, member](Exchange& e, const Tenant& t, const PathParts&) {
      return (documents_.*member)(e, t);
    });
  };
  const auto add_one = [this](const char* method, const char* pattern, MemberOfOne member) {
    add_user(method, pattern, [this, member](Exchange& e, const Tenant& t, const PathParts& parts) {
      return (documents_.*member)(e, t, parts[0]);
    });
  };
  add_all("POST", "/v1/documents", &Documents::create);
  add_all("GET", "/v1/documents", &Documents::list);
  add_all("GET", "/v1/documents/events", &Documents::all_events);
  add_one("GET", "/v1/documents/{id}", &Documents::get);
  add_one("POST", "/v1/documents/{id}", &Documents::change);
  add_one("PATCH", "/v1/documents/{id}", &Documents::change);
  add_one("DELETE", "/v1/documents/{id}", &Documents::remove);
  add_one("POST", "/v1/documents/{id}/cancel", &Documents::cancel);
  add_one("GET", "/v1/documents/{id}/events", &Documents::events);
  add_one("GET", "/v1/documents/{id}/retention", &Documents::retention);
  add_one("GET", "/v1/documents/{id}/content", &Documents::content);
  add_one("PUT", "/v1/documents/{id}/content", &Documents::put_content);
  add_one("POST", "/v1/documents/{id}/query", &Documents::query);
}

// ---- every request ----

Tenant App::authenticate(const RequestHead& head, Access access) {
  if (access == Access::kPublic) {
    return {};
  }
  const auto key = key_of(head);
  const bool is_admin = tenants_.is_admin(key);
  const Tenant* tenant = tenants_.find(key);
  if (tenant == nullptr && !is_admin) {
    throw ApiError(401, "invalid_api_key",
                   key ? "the API key is not valid" : "an API key is needed")
        .with_header("WWW-Authenticate", "Bearer");
  }
  if (access == Access::kAdmin) {
    if (!is_admin) {
      throw ApiError(403, "not_admin", "this needs the admin key");
    }
    return tenant == nullptr ? Tenant{"admin", {}, 0, 0} : *tenant;
  }
  if (tenant == nullptr) {
    throw ApiError(403, "no_tenant", "the admin key is no tenant's");
  }
  return *tenant;
}

void App::add_cors(const RequestHead& head, Reply& reply) const {
  const std::vector<std::string>& allowed = service_.options().cors_origins;
  const auto origin = head.header("origin");
  if (!origin || allowed.empty()) {
    return;
  }
  const bool any = std::find(allowed.begin(), allowed.end(), "*") != allowed.end();
  if (any || std::find(allowed.begin(), allowed.end(), *origin) != allowed.end()) {
    reply.headers.emplace_back("Access-Control-Allow-Origin", any ? "*" : std::string(*origin));
    reply.headers.emplace_back("Vary", "Origin");
    reply.headers.emplace_back(
        "Access-Control-Expose-Headers",
        "X-Request-Id, ETag, Location, Retry-After, X-KV-Cache, Idempotent-Replayed");
  }
}

asio::awaitable<void> App::handle(Exchange& exchange) {
  ++in_flight_;
  const auto count_down = [](int64_t* count) { --*count; };
  const std::unique_ptr<int64_t, decltype(count_down)> guard(&in_flight_, count_down);
  Reply cors;
  add_cors(exchange.head(), cors);
  exchange.common_headers = cors.headers;
  co_await dispatch(exchange);
}

asio::awaitable<void> App::dispatch(Exchange& exchange) {
  const RequestHead& head = exchange.head();
  const Router::Match match = router_.find(head.method, head.path);
  if (head.method == "OPTIONS" && (!match.allow.empty() || head.path == "*")) {
    Reply reply{204, "", "", {{"Allow", match.allow + ", OPTIONS"}}};
    if (!exchange.common_headers.empty()) {
      reply.headers.emplace_back("Access-Control-Allow-Methods", match.allow);
      reply.headers.emplace_back("Access-Control-Allow-Headers",
                                 "Authorization, Content-Type, X-Api-Key, X-Request-Id, If-Match, "
                                 "If-None-Match, Last-Event-ID, Prefer, Idempotency-Key");
      reply.headers.emplace_back("Access-Control-Max-Age", "600");
    }
    co_return co_await exchange.send(std::move(reply));
  }
  if (match.route == nullptr && !match.allow.empty()) {
    throw ApiError(405, "method_not_allowed",
                   fmt::format("{} is not allowed here", to_printable(head.method)))
        .with_header("Allow", match.allow);
  }
  const Access access = match.route == nullptr ? Access::kUser : match.route->access;
  // Whoever has no key learns nothing, not even which paths there are.
  const Tenant tenant = authenticate(head, access);
  exchange.tenant = tenant.name;
  if (match.route == nullptr) {
    throw ApiError(404, "not_found", fmt::format("there is no {}", to_printable(head.path)));
  }
  if (access == Access::kUser) {
    const auto wait = tenants_.admit(tenant, Tenants::Clock::now());
    if (wait.count() > 0) {
      throw ApiError(429, "rate_limit_exceeded", "too many requests of this tenant")
          .with_header("Retry-After", std::to_string((wait.count() + 999) / 1000))
          .with_header("retry-after-ms", std::to_string(wait.count()));
    }
  }
  co_await match.route->handler(exchange, match.parts);
}

void App::count(const Exchange& exchange) {
  if (exchange.status == 0) {
    ++counts_.aborted;
  } else {
    ++counts_.by_status[exchange.status];
  }
}

asio::awaitable<json::object> App::body_of(Exchange& exchange) {
  const std::string type(exchange.head().header("content-type").value_or("application/json"));
  if (!type.starts_with("application/json")) {
    throw ApiError(415, "unsupported_media_type", "the body must be application/json");
  }
  std::string body = co_await exchange.read_body(service_.options().body_bytes_max());
  static constexpr size_t kLarge = 64 << 10;  // more takes a millisecond
  if (body.size() < kLarge) {
    co_return parse_object(body);
  }
  const std::function<json::object()> work = [body = std::move(body)] {
    return parse_object(body);
  };
  co_return co_await service_.on_worker(work);
}

// ---- what isn't about documents ----

asio::awaitable<void> App::health(Exchange& exchange) {
  if (service_.phase() == Service::Phase::kLoading) {
    const auto [done, total] = service_.load_progress();
    throw ApiError(503, "loading", "Loading model")
        .with_header("Retry-After", "1")
        .with_field("loaded_layers", done)
        .with_field("layers", total);
  }
  if (service_.phase() == Service::Phase::kFailed) {
    service_.need_ready();
  }
  Reply answer = status_reply("ok");
  co_await exchange.send(std::move(answer));
}

asio::awaitable<void> App::ready(Exchange& exchange) {
  service_.need_ready();
  Reply answer = status_reply("ready");
  co_await exchange.send(std::move(answer));
}

json::object App::model_json() const {
  const ModelConfig& config = service_.model().model().config();
  json::object model;
  model["id"] = service_.model_name();
  model["object"] = "model";
  model["created"] = service_.started_s();
  model["owned_by"] = "pagezip";
  model["max_model_len"] = service_.engine_context_max();
  model["meta"] = {{"n_vocab", config.vocab},
                   {"n_ctx", service_.engine_context_max()},
                   {"n_ctx_train", config.context_max},
                   {"n_embd", config.hidden},
                   {"n_layer", config.layers},
                   {"n_head_kv", config.kv_heads},
                   {"architecture", config.architecture}};
  return model;
}

asio::awaitable<void> App::models(Exchange& exchange) {
  json::array data;
  data.push_back(model_json());
  json::object list;
  list["object"] = "list";
  list["data"] = std::move(data);
  Reply answer = json_reply(list);
  co_await exchange.send(std::move(answer));
}

asio::awaitable<void> App::one_model(Exchange& exchange, const std::string& id) {
  if (id != service_.model_name()) {
    throw ApiError(404, "model_not_found",
                   fmt::format("the model '{}' is not here", to_printable(id)), "model");
  }
  Reply answer = json_reply(model_json());
  co_await exchange.send(std::move(answer));
}

asio::awaitable<void> App::props(Exchange& exchange) {
  const ServeOptions& options = service_.options();
  const Tokenizer& tokenizer = service_.model().tokenizer();
  const auto piece = [&](std::optional<TokenId> id) {
    return id ? to_valid_utf8(tokenizer.piece(*id)) : std::string();
  };
  json::object reply;
  reply["model"] = service_.model_name();
  reply["build"] = "pagezip " PAGEZIP_VERSION;
  reply["kernels"] = service_.kernels_name();
  reply["threads"] = options.threads;
  reply["n_ctx"] = service_.engine().context_max();
  reply["page_tokens"] = options.engine.page_tokens;
  reply["pool_blocks"] = service_.pool_blocks();
  reply["block_bytes"] = service_.geometry().block_bytes();
  reply["keep_ratio"] = options.keep_ratio;
  reply["documents_on_disk"] = !options.engine.folder.empty();
  reply["body_bytes_max"] = options.body_bytes_max();
  reply["chat_template"] = service_.model().template_source();
  reply["bos_token"] = piece(tokenizer.bos());
  reply["eos_token"] = piece(tokenizer.eos());
  Reply answer = json_reply(reply);
  co_await exchange.send(std::move(answer));
}

json::object App::state_json() {
  const EngineStats stats = service_.engine().stats();
  const auto times = [](const Histogram& h) {
    return json::object{{"count", h.count()},
                        {"sum_ms", static_cast<double>(h.sum()) / 1000},
                        {"p50_ms", h.quantile(0.5) / 1000},
                        {"p99_ms", h.quantile(0.99) / 1000}};
  };
  json::object reply;
  reply["uptime_s"] = service_.clock().unix_s() - service_.started_s();
  reply["running"] = stats.work.running;
  reply["waiting"] = stats.work.waiting;
  reply["jobs_running"] = stats.work.jobs_running;
  reply["jobs_waiting"] = stats.work.jobs_waiting;
  reply["requests_finished"] = stats.work.requests_finished;
  reply["tokens_decoded"] = stats.work.rows_decode;
  reply["tokens_prefilled"] = stats.work.rows_prompt;
  reply["tokens_documents"] = stats.work.rows_document;
  reply["tokens_scored"] = stats.work.rows_score;
  reply["tokens_prompt"] = stats.work.tokens_admitted;
  reply["tokens_cached"] = stats.work.tokens_cached;
  reply["preemptions"] = stats.work.preemptions;
  reply["block_bytes"] = service_.geometry().block_bytes();
  reply["blocks"] = {{"total", stats.blocks_total},
                     {"free", stats.blocks_free},
                     {"reserved", stats.blocks_reserved},
                     {"idle_prefix", stats.blocks_idle},
                     {"documents", stats.documents.resident_blocks},
                     {"documents_held", stats.documents.held_blocks},
                     {"documents_pinned", stats.documents.pinned_blocks}};
  reply["times"] = {{"decode_step", times(stats.histograms.step(StepKind::kDecode))},
                    {"queue", times(stats.histograms.queue_us)},
                    {"first_token", times(stats.histograms.first_token_us)},
                    {"stall", times(stats.histograms.delay_us)}};
  return reply;
}

asio::awaitable<void> App::state(Exchange& exchange) {
  Reply answer = json_reply(state_json());
  co_await exchange.send(std::move(answer));
}

asio::awaitable<void> App::tokenize(Exchange& exchange) {
  const json::object body = co_await body_of(exchange);
  const std::function<std::string()> work = [this, &body] {
    const Fields fields(body);
    const Tokenizer& tokenizer = service_.model().tokenizer();
    std::vector<TokenId> tokens;
    if (fields.has("messages")) {
      tokens = encode_chat(service_.model(), read_messages(fields), service_.clock().unix_s());
    } else {
      const std::string text =
          fields.has("content") ? fields.need_text("content") : fields.need_text("prompt");
      const bool special = fields.boolean("parse_special").value_or(true);
      const bool add = fields.boolean("add_special_tokens")
                           .value_or(fields.boolean("add_special").value_or(false));
      if (const auto bos = tokenizer.bos(); bos && add && tokenizer.add_bos()) {
        tokens.push_back(*bos);
      }
      const std::vector<TokenId> own = tokenizer.encode(text, special);
      tokens.insert(tokens.end(), own.begin(), own.end());
    }
    const bool pieces = fields.boolean("with_pieces").value_or(false);
    json::object reply;
    json::array ids;
    json::array texts;
    for (const TokenId token : tokens) {
      const std::string piece = tokenizer.piece(token);
      if (pieces) {
        json::object one;
        one["id"] = token;
        if (is_valid_utf8(piece)) {
          one["piece"] = piece;
        } else {
          one["piece"] = bytes_json(piece);
        }
        ids.push_back(std::move(one));
      } else {
        ids.emplace_back(token);
      }
      texts.emplace_back(to_valid_utf8(piece));
    }
    reply["count"] = ids.size();
    reply["max_model_len"] = service_.engine().context_max();
    reply["tokens"] = std::move(ids);
    if (fields.boolean("return_token_strs").value_or(false)) {
      reply["token_strs"] = std::move(texts);
    }
    return to_text(reply);
  };
  std::string text = co_await service_.on_worker(work);
  Reply answer = json_text(std::move(text));
  co_await exchange.send(std::move(answer));
}

asio::awaitable<void> App::detokenize(Exchange& exchange) {
  const json::object body = co_await body_of(exchange);
  const Fields fields(body);
  const json::array* list = fields.array("tokens");
  if (list == nullptr) {
    fields.fail("tokens", "is missing");
  }
  std::vector<TokenId> tokens;
  for (const json::value& id : *list) {
    if (!id.is_int64() || id.get_int64() < 0 || id.get_int64() >= service_.vocabulary()) {
      fields.fail("tokens", fmt::format("must be token ids below {}", service_.vocabulary()));
    }
    tokens.push_back(static_cast<TokenId>(id.get_int64()));
  }
  const std::string text = service_.model().tokenizer().decode(tokens, true);
  Reply answer = text_reply(text);
  co_await exchange.send(std::move(answer));
}

asio::awaitable<void> App::apply_template(Exchange& exchange) {
  const json::object body = co_await body_of(exchange);
  const std::vector<ChatMessage> messages = read_messages(Fields(body));
  const ChatTemplate& chat_template = need_template(service_.model());
  const std::string text = chat_template.render(messages, service_.clock().unix_s()).text;
  Reply answer = text_reply(to_valid_utf8(text));
  co_await exchange.send(std::move(answer));
}

asio::awaitable<void> App::render(Exchange& exchange, const Tenant& tenant) {
  const json::object body = co_await body_of(exchange);
  const GenerationForm form = read_chat(body, service_, tenant);
  const std::vector<std::vector<TokenId>> prompts = co_await make_prompts(form, service_, tenant);
  json::array ids;
  for (const TokenId token : prompts.front()) {
    ids.emplace_back(token);
  }
  json::object sampling;
  sampling["temperature"] = form.request.sampling.temperature;
  sampling["top_p"] = form.request.sampling.top_p;
  sampling["top_k"] = form.request.sampling.top_k;
  sampling["n"] = form.request.choices;
  sampling["max_tokens"] = form.request.output_max;
  json::object reply;
  reply["model"] = service_.model_name();
  reply["token_ids"] = std::move(ids);
  reply["sampling_params"] = std::move(sampling);
  if (!form.request.document.empty()) {
    reply["document_id"] = form.request.document;  // stands in front of token_ids
  }
  Reply answer = json_reply(reply);
  co_await exchange.send(std::move(answer));
}

asio::awaitable<void> App::chat(Exchange& exchange, const Tenant& tenant) {
  const json::object body = co_await body_of(exchange);
  co_await generate(exchange, read_chat(body, service_, tenant), service_, tenant);
}

asio::awaitable<void> App::complete(Exchange& exchange, const Tenant& tenant) {
  const json::object body = co_await body_of(exchange);
  co_await generate(exchange, read_completion(body, service_, tenant), service_, tenant);
}

}  // namespace pagezip::http
