// The options of `pagezip serve`.
#include "api/cli/serve_options.h"

#include <cctype>
#include <chrono>

#include "api/cli/option_kinds.h"

namespace pagezip {
namespace {

constexpr const char* kServing = "Serving";
constexpr const char* kLimits = "Limits";
constexpr const char* kDocuments = "Documents";
constexpr const char* kSecurity = "Keys and TLS";

// A number of seconds, as milliseconds.
void add_seconds(CLI::App& app, const std::string& name, std::chrono::milliseconds& value,
                 const std::string& text) {
  const auto set = [&value, name](const std::string& given) {
    double seconds = 0;
    const auto [end, error] = std::from_chars(given.data(), given.data() + given.size(), seconds);
    if (error != std::errc() || end != given.data() + given.size() ||
        !(seconds >= 0.01 && seconds <= 86'400)) {
      throw CLI::ValidationError(name,
                                 fmt::format("\"{}\" is not a number in [0.01, 86400] s", given));
    }
    value = std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
  };
  app.add_option_function<std::string>(name, set,
                                       fmt::format("{}; [0.01, 86400] s, default {}", text,
                                                   static_cast<double>(value.count()) / 1000))
      ->option_text("NUM")
      ->group(kLimits);
}

CLI::Option* add_list(CLI::App& app, const std::string& name, std::vector<std::string>& values,
                      const std::string& kind, const std::string& description) {
  return app.add_option(name, values, description)->option_text(kind)->delimiter(',');
}

void add_limits(CLI::App& app, http::ServeOptions& o) {
  const auto number = [&app](const char* name, auto& value, const auto& range, const char* text) {
    add_number(app, name, value, range, text)->group(kLimits);
  };
  number("--max-connections", o.listen.connections_max, Range<size_t>{1, 100'000},
         "Clients at once; more get 503");
  number("--max-body-mib", o.body_mib_max, Range<int64_t>{1, 4096, false, "MiB"},
         "Largest body of a request");
  number("--max-header-bytes", o.limits.header_bytes,
         Range<uint32_t>{1024, 1 << 20, false, "bytes"}, "Headers of a request together");
  number("--max-queue", o.engine.scheduler.queue_max, Range<int64_t>{1, 1 << 20},
         "Requests and documents that wait; more get 429");
  number("--max-running", o.engine.scheduler.running_max, Range<int64_t>{1, 4096},
         "Answers that are generated at once");
  add_seconds(app, "--header-timeout", o.limits.header_time, "For a request's headers");
  add_seconds(app, "--body-timeout", o.limits.body_time, "For a request's body");
  add_seconds(app, "--idle-timeout", o.limits.idle_time, "Between requests of a connection");
  add_seconds(app, "--write-timeout", o.limits.write_time, "For a client to take what it is sent");
  number("--shutdown-timeout", o.shutdown_s, Range<double>{0, 86'400, false, "s"},
         "That running requests get after the first signal");
  number("--sse-ping-interval", o.ping_interval_s, Range<double>{0.05, 86'400, false, "s"},
         "Between comments in streams that have nothing to say");
}

void add_documents(CLI::App& app, http::ServeOptions& o) {
  add_text(app, "--documents", o.engine.folder, "FOLDER",
           "Where documents survive a restart, default nowhere")
      ->group(kDocuments);
  add_number<int64_t>(app, "--documents-mib", o.documents_mib_max, {1, 1 << 30, false, "MiB"},
                      "Files in that folder together")
      ->group(kDocuments);
  add_number<double>(app, "--keep", o.keep_ratio, {0, 1, true},
                     "Share of a document's KV pairs to keep, if it doesn't say")
      ->group(kDocuments);
  add_number<int64_t>(app, "--chunk", o.engine.chunk_tokens, {16, 1 << 20, false, "tokens"},
                      "Part of a document that is scored at once")
      ->group(kDocuments);
  add_number<double>(app, "--documents-share", o.engine.documents_share, {0, 1, true},
                     "Of the pool, that documents in use may take")
      ->group(kDocuments);
  add_number<double>(app, "--pinned-share", o.engine.pinned_share, {0, 1},
                     "Of the pool, that pinned documents may take")
      ->group(kDocuments);
}

void add_keys(CLI::App& app, http::ServeOptions& o) {
  add_text(app, "--api-key", o.api_key, "KEY", "The one key, of the tenant \"default\"")
      ->group(kSecurity);
  add_text(app, "--api-key-file", o.api_key_file, "FILE",
           "Tenants, one a line: NAME KEY [groups=A,B] [kv-mib=N] [per-minute=N]")
      ->group(kSecurity);
  add_text(app, "--admin-key", o.admin_key, "KEY", "For /metrics, default every key")
      ->group(kSecurity);
  CLI::Option* certificate =
      add_text(app, "--ssl-cert-file", o.listen.certificate_file, "FILE", "TLS certificates, PEM")
          ->group(kSecurity);
  CLI::Option* key =
      add_text(app, "--ssl-key-file", o.listen.key_file, "FILE", "Their private key, PEM")
          ->group(kSecurity);
  certificate->needs(key);
  key->needs(certificate);
  add_list(app, "--cors-origins", o.cors_origins, "LIST",
           "Web pages that may call, as https://a.example,https://b.example or *, default none")
      ->group(kSecurity);
}

}  // namespace

void add_serve_options(CLI::App& app, http::ServeOptions& o) {
  add_text(app, "--model-name", o.model_name, "NAME",
           "As clients call the model, default its file's name")
      ->group(kServing);
  add_list(app, "--host", o.listen.hosts, "LIST", "Addresses to listen on, default 127.0.0.1")
      ->group(kServing);
  add_number<uint16_t>(app, "--port", o.listen.port, {0, 65'535}, "0: any that is free")
      ->group(kServing);
  add_number<double>(app, "--step-target-ms", o.step_target_ms, {0, 60'000, false, "ms"},
                     "Time of a step while something decodes", "twice what decoding takes alone")
      ->group(kServing);
  app.add_flag("!--no-access-log", o.access_log, "No line for each request")->group(kServing);
  add_choice<bool>(app, "--metrics-compat", o.metrics_vllm, {{"none", false}, {"vllm", true}},
                   "Names of others in /metrics beside our own")
      ->group(kServing);
  add_text(app, "--trace", o.engine.trace, "FILE", "Write what every step did, for Perfetto")
      ->group(kServing);
  add_limits(app, o);
  add_documents(app, o);
  add_keys(app, o);
  // Every option has a name in the environment: --max-body-mib is PAGEZIP_MAX_BODY_MIB.
  for (CLI::Option* option : app.get_options()) {
    std::string name = option->get_lnames().empty() ? "" : option->get_lnames().front();
    if (name.empty() || name == "help") {
      continue;
    }
    for (char& c : name) {
      c = c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    }
    option->envname("PAGEZIP_" + name);
  }
}

}  // namespace pagezip
