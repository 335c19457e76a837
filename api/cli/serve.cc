#include "api/http/serve.h"

#include "api/cli/files.h"
#include "api/cli/verbs.h"

namespace pagezip {

int run_serve(const Options& options) {
  const RuntimeOptions& runtime = options.runtime;
  http::ServeOptions serve = options.serve;
  serve.model = runtime.model;
  if (!runtime.chat_template.empty()) {
    serve.chat_template = read_text(runtime.chat_template, "chat template");
  }
  serve.threads = runtime.threads;
  serve.backend = runtime.backend;
  serve.activations = runtime.activations;
  serve.pool_mib = runtime.pool_mib;
  serve.engine.kv_type = runtime.kv_type;
  serve.engine.page_tokens = runtime.page_tokens;
  serve.engine.scheduler.step_target_us = serve.step_target_ms * 1000;
  if (runtime.context > 0) {
    serve.engine.context_max = runtime.context;
  }
  return http::serve(serve);
}

}  // namespace pagezip
