#include "api/http/serve.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <csignal>
#include <cstdio>

#include "api/http/app.h"
#include "api/http/server.h"
#include "api/http/service.h"
#include "api/http/tenants.h"
#include "engine/utf8.h"

namespace pagezip::http {
namespace {

constexpr auto kNoThrow = asio::as_tuple(asio::use_awaitable);
constexpr std::chrono::milliseconds kDrainLook{50};

void say(const std::string& line) { std::fprintf(stderr, "pagezip: %s\n", line.c_str()); }

Tenants load_tenants(const ServeOptions& options) {
  Tenants tenants;
  if (!options.api_key_file.empty()) {
    tenants.load(options.api_key_file);
  }
  if (!options.api_key.empty()) {
    tenants.add_key(options.api_key, {"default", {}, 0, 0});
  }
  if (!options.admin_key.empty()) {
    tenants.set_admin_key(options.admin_key);
  }
  return tenants;
}

std::string describe_pool(const Service& service) {
  const KvGeometry& geometry = service.geometry();
  const int64_t bytes = service.pool_blocks() * geometry.block_bytes();
  return fmt::format("pool {:.0f} MiB: {} blocks of {} tokens, {} bytes each",
                     static_cast<double>(bytes) / (1 << 20), service.pool_blocks(),
                     service.options().engine.page_tokens, geometry.block_bytes());
}

// The trace that a request belongs to, for the log: W3C Trace Context §3.2, version 0.
std::string trace_of(const RequestHead& head) {
  const std::string_view parent = head.header("traceparent").value_or("");
  const bool is_known = parent.size() == 55 && parent.starts_with("00-") && parent[35] == '-';
  const std::string_view id = is_known ? parent.substr(3, 32) : "";
  const bool is_id = !id.empty() && id.find_first_not_of("0123456789abcdef") == id.npos;
  return is_id ? fmt::format(" trace={}", id) : "";
}

class Program {
 public:
  explicit Program(const ServeOptions& options)
      : options_(options),
        tenants_(load_tenants(options)),
        io_(std::make_unique<asio::io_context>(1)),
        service_(*io_, options_),
        app_(service_, tenants_),
        server_(std::make_unique<Server>(*io_, options.listen, connection_options())),
        signals_(std::make_unique<asio::signal_set>(*io_, SIGINT, SIGTERM, SIGHUP)) {}
  // Requests that were cut off are coroutines of the I/O context: they go before what they use.
  ~Program() {
    signals_.reset();
    server_.reset();
    io_.reset();
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  int run() {
    server_->start();
    for (const std::string& url : server_->urls()) {
      say(fmt::format("listening on {}", url));
    }
    warn();
    service_.start(
        [this](int64_t done, int64_t total) {
          const int64_t tenth = done * 10 / std::max<int64_t>(total, 1);
          if (tenth != told_) {
            told_ = tenth;
            say(fmt::format("loading {}: {} of {} layers", options_.model, done, total));
          }
        },
        [this](const std::exception_ptr& error) { loaded(error); });
    asio::co_spawn(*io_, watch_signals(), asio::detached);
    io_->run();
    service_.stop();
    if (failure_) {
      std::rethrow_exception(failure_);
    }
    return 0;
  }

 private:
  ConnectionOptions connection_options() {
    ConnectionOptions connections;
    connections.limits = options_.limits;
    connections.handle = [this](Exchange& exchange) { return app_.handle(exchange); };
    connections.keep_alive = [this] { return service_.phase() != Service::Phase::kDraining; };
    connections.done = [this](const Exchange& exchange, std::chrono::microseconds time) {
      app_.count(exchange);
      log(exchange, time);
    };
    return connections;
  }

  void log(const Exchange& exchange, std::chrono::microseconds time) const {
    const RequestHead& head = exchange.head();
    const bool is_probe = head.path == "/health" || head.path == "/ready" ||
                          head.path == "/metrics" || head.path == "/state";
    if (options_.access_log && !is_probe) {
      say(fmt::format("{} {} {} {} {:.1f} ms {}{}", exchange.tenant.empty() ? "-" : exchange.tenant,
                      head.method, to_printable(head.path, 200), exchange.status,
                      static_cast<double>(time.count()) / 1000, head.id, trace_of(head)));
    }
  }

  void warn() const {
    if (tenants_.open()) {
      say("warning: there are no API keys (--api-key-file): whoever reaches the port may use it");
      if (std::find(options_.cors_origins.begin(), options_.cors_origins.end(), "*") !=
          options_.cors_origins.end()) {
        say("warning: and every web page may (--cors-origins)");
      }
    }
  }

  void loaded(const std::exception_ptr& error) {
    if (error) {
      failure_ = error;
      io_->stop();
      return;
    }
    const ModelConfig& config = service_.model().model().config();
    say(fmt::format("model {}: {}, {} layers x {} KV heads x {}, context {}", service_.model_name(),
                    config.architecture, config.layers, config.kv_heads, config.head_dim,
                    service_.engine().context_max()));
    say(fmt::format("{} kernels, {} threads; {}", service_.kernels_name(), options_.threads,
                    describe_pool(service_)));
    say(fmt::format("documents keep {} of their KV pairs unless they say otherwise; {}; keys {}",
                    options_.keep_ratio,
                    options_.engine.folder.empty() ? std::string("in memory only")
                                                   : "files in " + options_.engine.folder,
                    tenants_.open() ? "off" : "on"));
    for (const DocumentDirectory::Finding& finding : service_.engine().findings()) {
      say(fmt::format("{}: {}", finding.name, finding.reason));
    }
    say("ready");
  }

  asio::awaitable<void> watch_signals() {
    while (true) {
      const auto [error, signal] = co_await signals_->async_wait(kNoThrow);
      if (error) {
        co_return;
      }
      if (signal == SIGHUP) {
        reload();
      } else if (draining_) {
        say("second signal: ending at once");
        // Not exit(): threads still run, and files are whole at any time.
        _exit(128 + signal);
      } else {
        draining_ = true;
        asio::co_spawn(*io_, drain(), asio::detached);
      }
    }
  }

  void reload() {
    try {
      server_->reload_certificate();
      Tenants fresh = load_tenants(options_);
      tenants_ = std::move(fresh);
      say("keys and certificates are read again");
    } catch (const std::exception& error) {
      say(fmt::format("nothing is changed: {}", error.what()));
    }
  }

  asio::awaitable<void> drain() {
    say(fmt::format("draining: {} connections, up to {} s", server_->connections(),
                    options_.shutdown_s));
    service_.drain();
    server_->stop_listening();
    const auto end =
        std::chrono::steady_clock::now() + std::chrono::duration<double>(options_.shutdown_s);
    asio::steady_timer timer(*io_);
    // Connections without a request aren't waited for.
    while (app_.in_flight() > 0 && std::chrono::steady_clock::now() < end) {
      timer.expires_after(kDrainLook);
      co_await timer.async_wait(asio::use_awaitable);
    }
    say(app_.in_flight() == 0 ? "drained" : "some requests didn't end in time");
    io_->stop();
  }

  const ServeOptions options_;
  Tenants tenants_;
  std::unique_ptr<asio::io_context> io_;
  Service service_;
  App app_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<asio::signal_set> signals_;
  std::exception_ptr failure_;
  int64_t told_ = 0;  // loading thread
  bool draining_ = false;
};

}  // namespace

int serve(const ServeOptions& options) {
  std::signal(SIGPIPE, SIG_IGN);
  Program program(options);
  return program.run();
}

}  // namespace pagezip::http
