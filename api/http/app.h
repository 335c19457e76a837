// What the server answers: all paths, who may use them, and the rules for every request.
#pragma once

#include <map>
#include <string>

#include "api/http/documents.h"
#include "api/http/metrics.h"
#include "api/http/router.h"
#include "api/http/service.h"
#include "api/http/tenants.h"

namespace pagezip::http {

class App {
 public:
  /// Borrows both.
  App(Service& service, Tenants& tenants);

  /// Answers one request, whatever it is.
  asio::awaitable<void> handle(Exchange& exchange);
  /// A request is over: for /metrics.
  void count(const Exchange& exchange);
  /// Requests that are being answered.
  int64_t in_flight() const { return in_flight_; }

 private:
  using TenantHandler =
      std::function<asio::awaitable<void>(Exchange&, const Tenant&, const PathParts&)>;

  void add_routes();
  void add_document_routes();
  void add(const char* method, const char* pattern, Access access, Handler handler);
  /// For handlers that need the model.
  void add_user(const char* method, const char* pattern, TenantHandler handler);
  asio::awaitable<void> dispatch(Exchange& exchange);
  Tenant authenticate(const RequestHead& head, Access access);
  void add_cors(const RequestHead& head, Reply& reply) const;

  asio::awaitable<void> health(Exchange& exchange);
  asio::awaitable<void> ready(Exchange& exchange);
  asio::awaitable<void> models(Exchange& exchange);
  asio::awaitable<void> one_model(Exchange& exchange, const std::string& id);
  json::object model_json() const;
  json::object state_json();
  asio::awaitable<void> props(Exchange& exchange);
  asio::awaitable<void> state(Exchange& exchange);
  asio::awaitable<void> tokenize(Exchange& exchange);
  asio::awaitable<void> detokenize(Exchange& exchange);
  asio::awaitable<void> apply_template(Exchange& exchange);
  asio::awaitable<void> render(Exchange& exchange, const Tenant& tenant);
  asio::awaitable<void> chat(Exchange& exchange, const Tenant& tenant);
  asio::awaitable<void> complete(Exchange& exchange, const Tenant& tenant);
  asio::awaitable<json::object> body_of(Exchange& exchange);

  Service& service_;
  Tenants& tenants_;
  Router router_;
  Documents documents_;
  RequestCounts counts_;
  int64_t in_flight_ = 0;
};

}  // namespace pagezip::http
