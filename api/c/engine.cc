// Tier 3 of the C ABI: the serving engine.
#include <memory>
#include <thread>
#include <utility>

#include "api/c/engine_handles.h"

using namespace pagezip;         // NOLINT(google-build-using-namespace): handles and entries are
using namespace pagezip::c_api;  // NOLINT(google-build-using-namespace): outside of it

struct pagezip_model {
  std::shared_ptr<const OpenModel> shared;
};

struct pagezip_stream {
  std::weak_ptr<RunningEngine> engine;
  std::shared_ptr<OutputStream> stream;
  std::string text;
};

namespace pagezip::c_api {
namespace {

int threads_of(int32_t asked) {
  require(asked >= 0 && asked <= 1024, "threads are not 0 to 1024");
  return asked > 0 ? asked : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

pagezip_model* open_model(const char* path, const pagezip_model_options* from) {
  require(path != nullptr, "path is null");
  const auto options =
      from == nullptr ? pagezip_model_options{} : read_struct(from, "pagezip_model_options");
  ThreadPool threads(threads_of(0));
  return new pagezip_model{std::make_shared<const OpenModel>(path, options, threads)};
}

pagezip_engine* create_engine(const pagezip_model* model, const pagezip_engine_options* from) {
  require(model != nullptr, "model is null");
  const auto c = read_struct(from, "pagezip_engine_options");
  EngineOptions options;
  require(c.page_tokens == 0 || c.page_tokens == 16 || c.page_tokens == 32 || c.page_tokens == 64,
          "page_tokens is not 16, 32 or 64");
  options.page_tokens = c.page_tokens == 0 ? options.page_tokens : c.page_tokens;
  const KvGeometry geometry =
      model->shared->loaded.model().kv_geometry(options.kv_type, options.page_tokens);
  options.pool_blocks = c.pool_bytes / geometry.block_bytes();
  require(options.pool_blocks > 0, "pool_bytes are less than one block");
  require(options.pool_blocks < (int64_t{1} << 32) / geometry.pages_per_block(),
          "pool_bytes are 2^32 pages or more");
  const int limit = model->shared->loaded.model().config().context_max;
  require(c.context_max >= 0 && c.context_max <= limit, "context_max is above the model's limit");
  if (c.context_max > 0) {
    options.context_max = c.context_max;
  }
  options.folder = name_of(c.folder);
  options.identity = model->shared->loaded.identity();
  options.provenance = std::string("libpagezip ") + pagezip_version();
  auto running = std::make_shared<RunningEngine>(model->shared, threads_of(c.threads), options);
  auto engine = std::make_unique<pagezip_engine>(pagezip_engine{std::move(running), c.driven != 0});
  if (!engine->driven) {
    engine->running->engine.start();
  }
  return engine.release();
}

// ---- requests ----

std::vector<TokenId> prompt_of(const OpenModel& model, const pagezip_generate_request& c) {
  require(c.tokens != nullptr || c.token_count == 0, "tokens is null");
  if (c.token_count > 0) {
    require(c.text_bytes == 0, "a request has both text and tokens");
    return {c.tokens, c.tokens + c.token_count};
  }
  std::vector<TokenId> question = model.frame.question(text_of(c.text, c.text_bytes, "text"));
  if (c.document != nullptr) {
    return question;
  }
  std::vector<TokenId> prompt(model.frame.prefix().begin(), model.frame.prefix().end());
  prompt.insert(prompt.end(), question.begin(), question.end());
  return prompt;
}

GenerateRequest generate_request(const OpenModel& model, const pagezip_generate_request* from) {
  const auto c = read_struct(from, "pagezip_generate_request");
  require(c.stops != nullptr || c.stop_count == 0, "stops is null");
  require(c.output_max > 0, "output_max must be at least 1");
  Requester requester = requester_of(c.requester);
  GenerateRequest request;
  request.tenant = std::move(requester.tenant);
  request.groups = std::move(requester.groups);
  request.priority = c.priority;
  request.document = name_of(c.document);
  request.keep_ratio = keep_ratio_of(c.keep_ratio);
  request.prompt = prompt_of(model, c);
  request.output_max = c.output_max;
  request.choices = c.choices == 0 ? 1 : c.choices;
  request.sampling.temperature = c.temperature;
  request.sampling.top_k = c.top_k;
  request.sampling.top_p = c.top_p == 0 ? 1 : c.top_p;
  request.sampling.min_p = c.min_p;
  request.sampling.repetition_penalty = c.repetition_penalty == 0 ? 1 : c.repetition_penalty;
  request.sampling.seed = c.seed;
  for (size_t i = 0; i < c.stop_count; ++i) {
    request.stops.push_back(name_of(c.stops[i]));
  }
  request.top_logprobs = c.logprobs != 0 ? 0 : -1;
  request.ignore_end = c.ignore_end != 0;
  return request;
}

pagezip_event event_of(pagezip_stream& of, std::optional<OutputEvent> from) {
  pagezip_event event{};
  event.token = -1;
  of.text.clear();
  if (!from.has_value()) {
    event.kind = of.stream->done() ? PAGEZIP_EVENT_CLOSED : PAGEZIP_EVENT_NONE;
  } else if (from->refusal.has_value()) {
    event.kind = PAGEZIP_EVENT_REFUSED;
    of.text = std::move(from->refusal->message);
  } else {
    event.kind = from->finish.has_value() ? PAGEZIP_EVENT_FINISHED : PAGEZIP_EVENT_TOKEN;
    event.choice = from->choice;
    event.token = from->token.value_or(-1);
    event.logprob = from->logprob;
    event.finish = static_cast<pagezip_finish>(from->finish.value_or(FinishReason::kEnd));
    of.text = std::move(from->text);
  }
  event.text = of.text.c_str();
  event.text_bytes = of.text.size();
  return event;
}

static_assert(static_cast<int>(FinishReason::kEnd) == PAGEZIP_FINISH_END);
static_assert(static_cast<int>(FinishReason::kLength) == PAGEZIP_FINISH_LENGTH);
static_assert(static_cast<int>(FinishReason::kStopString) == PAGEZIP_FINISH_STOP);
static_assert(static_cast<int>(FinishReason::kCancelled) == PAGEZIP_FINISH_CANCELLED);
static_assert(static_cast<int>(FinishReason::kFailed) == PAGEZIP_FINISH_FAILED);

}  // namespace
}  // namespace pagezip::c_api

// ---- models ----

pagezip_status pagezip_model_open(const char* path, const pagezip_model_options* options,
                                  pagezip_model** model) {
  return guarded([&] {
    require(model != nullptr, "model is null");
    *model = open_model(path, options);
    return PAGEZIP_OK;
  });
}

void pagezip_model_close(pagezip_model* model) { delete model; }

pagezip_status pagezip_model_get_info(const pagezip_model* model, pagezip_model_info* info) {
  return guarded([&] {
    require(model != nullptr, "model is null");
    const LoadedModel& loaded = model->shared->loaded;
    const ModelConfig& config = loaded.model().config();
    const ModelIdentity& identity = loaded.identity();
    const pagezip_model_info known = {
        sizeof known,
        config.vocab,
        config.context_max,
        config.layers,
        config.kv_heads,
        config.head_dim,
        {identity.weights, identity.tokenizer, identity.rope, identity.chat_template}};
    write_struct(info, known, "pagezip_model_info");
    return PAGEZIP_OK;
  });
}

pagezip_status pagezip_model_tokenize(const pagezip_model* model, const char* text,
                                      size_t text_bytes, int32_t* ids, size_t ids_max,
                                      size_t* count) {
  return guarded([&] {
    require(model != nullptr && count != nullptr && (ids != nullptr || ids_max == 0),
            "model, ids or count is null");
    const std::vector<TokenId> tokens =
        model->shared->loaded.tokenizer().encode(text_of(text, text_bytes, "text"), false);
    std::copy_n(tokens.begin(), std::min(ids_max, tokens.size()), ids);
    *count = tokens.size();
    return PAGEZIP_OK;
  });
}

// ---- engines ----

pagezip_status pagezip_engine_create(pagezip_model* model, const pagezip_engine_options* options,
                                     pagezip_engine** engine) {
  return guarded([&] {
    require(engine != nullptr, "engine is null");
    *engine = create_engine(model, options);
    return PAGEZIP_OK;
  });
}

void pagezip_engine_destroy(pagezip_engine* engine) { delete engine; }

pagezip_status pagezip_engine_step(pagezip_engine* engine, int32_t* worked) {
  return guarded([&] {
    require(engine != nullptr && worked != nullptr, "engine or worked is null");
    require(engine->driven, "the engine has a thread of its own");
    *worked = engine->running->engine.step() ? 1 : 0;
    return PAGEZIP_OK;
  });
}

pagezip_status pagezip_engine_get_stats(pagezip_engine* engine, pagezip_stats* stats) {
  return guarded([&] {
    require(engine != nullptr, "engine is null");
    const Stats from = engine->running->engine.stats().work;
    const pagezip_stats known = {sizeof known,
                                 from.steps,
                                 from.rows_decode,
                                 from.rows_prompt,
                                 from.rows_document,
                                 from.rows_score,
                                 from.tokens_cached,
                                 from.preemptions,
                                 from.running + from.jobs_running,
                                 from.waiting + from.jobs_waiting};
    write_struct(stats, known, "pagezip_stats");
    return PAGEZIP_OK;
  });
}

pagezip_status pagezip_engine_submit(pagezip_engine* engine,
                                     const pagezip_generate_request* request,
                                     pagezip_stream** stream) {
  return guarded([&] {
    require(engine != nullptr && stream != nullptr, "engine or stream is null");
    auto made = std::make_unique<pagezip_stream>();
    made->engine = engine->running;
    made->stream =
        engine->running->engine.submit(generate_request(*engine->running->model, request));
    if (made->stream == nullptr) {
      return fail(PAGEZIP_BUSY, "too many commands wait");
    }
    *stream = made.release();
    return PAGEZIP_OK;
  });
}

// ---- streams ----

pagezip_status pagezip_stream_next(pagezip_stream* stream, int64_t timeout_ms,
                                   pagezip_event* event) {
  return guarded([&] {
    require(stream != nullptr, "stream is null");
    require(event != nullptr && event->size >= sizeof event->size,
            "pagezip_event is null or has no size");  // before an event is taken
    write_struct(event, event_of(*stream, stream->stream->next(timeout_of(timeout_ms))),
                 "pagezip_event");
    return PAGEZIP_OK;
  });
}

pagezip_status pagezip_stream_get_usage(const pagezip_stream* stream, pagezip_usage* usage) {
  return guarded([&] {
    require(stream != nullptr, "stream is null");
    const OutputUsage from = stream->stream->usage();
    const pagezip_usage known = {sizeof known, from.prompt_tokens, from.cached_tokens,
                                 from.document_tokens, from.keep_ratio};
    write_struct(usage, known, "pagezip_usage");
    return PAGEZIP_OK;
  });
}

void pagezip_stream_cancel(pagezip_stream* stream) {
  if (stream != nullptr) {
    cancel(*stream, stream->stream->id());
  }
}

void pagezip_stream_free(pagezip_stream* stream) {
  pagezip_stream_cancel(stream);
  delete stream;
}
