// Commands, steps, and what comes of requests.
#include "engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "engine/calibration.h"
#include "engine/engine_live.h"

namespace pagezip {
namespace {

int64_t document_blocks(const EngineOptions& options) {
  return static_cast<int64_t>(options.documents_share * static_cast<double>(options.pool_blocks));
}

DocumentStore::Limits store_limits(const EngineOptions& options) {
  DocumentStore::Limits limits;
  limits.held_blocks = document_blocks(options);
  limits.pinned_blocks = std::min(
      limits.held_blocks,
      static_cast<int64_t>(options.pinned_share * static_cast<double>(options.pool_blocks)));
  limits.file_bytes = options.folder.empty() ? 0 : options.file_bytes_max;
  return limits;
}

SchedulerConfig scheduler_config(const EngineOptions& options, const Model& model,
                                 const Tokenizer& tokenizer) {
  SchedulerConfig config = options.scheduler;
  const std::vector<bool>& global = model.config().is_global;
  config.score_layers =
      static_cast<int>(global.rend() - std::find(global.rbegin(), global.rend(), true));
  const auto ends = tokenizer.end_of_generation();
  config.end_tokens.assign(ends.begin(), ends.end());
  config.document_blocks = document_blocks(options);
  config.depth = 1;  // the CPU computes a step while nothing else can be planned
  return config;
}

}  // namespace

void check_tokens(std::span<const TokenId> tokens, int vocab) {
  for (const TokenId token : tokens) {
    if (token < 0 || token >= vocab) {
      throw Error(ErrorKind::kUsage, fmt::format("token id {} is not in the vocabulary", token));
    }
  }
}

Engine::Engine(const Model& model, const Tokenizer& tokenizer, const Kernels& kernels,
               ActivationType activations, ThreadPool& threads, const EngineOptions& options,
               const Clock& clock)
    : model_(model),
      tokenizer_(tokenizer),
      clock_(clock),
      options_(options),
      context_max_(options.context_max.value_or(model.config().context_max)),
      transformer_(model, kernels, activations,
                   model.kv_geometry(options.kv_type, options.page_tokens).page,
                   options.scheduler.rows_max, threads),
      pool_(model.kv_geometry(options.kv_type, options.page_tokens), options.pool_blocks,
            *kernels.memory),
      store_(pool_.geometry(), store_limits(options)),
      index_(pool_, model.kv_groups()),
      device_(transformer_, options.chunk_tokens + kRepeatRows, clock),
      scheduler_(scheduler_config(options, model, tokenizer),
                 CostModel(options.cost.has_value() ? *options.cost
                                                    : calibrate(transformer_, pool_, clock)),
                 pool_, index_, model.kv_groups(),
                 [this](int64_t blocks, bool urgent) { return reclaim(blocks, urgent); }),
      trace_(options.trace) {
  if (!options.folder.empty()) {
    open_folder();
  }
}

Engine::~Engine() {
  stop();
  run_commands();
  for (const Waiting& waiting : std::exchange(waiting_, {})) {
    waiting.refuse(RefusalKind::kCancelled, "the engine ends");
  }
  for (const auto& [id, request] : requests_) {
    scheduler_.cancel(id);
  }
  for (const auto& [id, task] : tasks_) {
    scheduler_.cancel(id);
  }
  take_events({});
}

// ---- any thread ----

bool Engine::post(Command command, bool bounded) {
  {
    const std::lock_guard lock(mutex_);
    if (bounded && inbox_.size() >= options_.inbox_max) {
      return false;
    }
    inbox_.push_back(std::move(command));
  }
  posted_.notify_one();
  return true;
}

std::shared_ptr<OutputStream> Engine::submit(GenerateRequest request) {
  if (request.prompt.empty()) {
    throw Error(ErrorKind::kUsage, "the prompt is empty");
  }
  if (request.output_max < 0 || request.choices < 1) {
    throw Error(ErrorKind::kUsage, "a request must ask for at least one choice");
  }
  check_tokens(request.prompt, model_.config().vocab);
  validate(request.sampling);
  const StopMatcher stops(request.stops);  // throws for an empty one
  std::shared_ptr<OutputStream> stream(new OutputStream(next_id_++, request.wake));
  const bool posted = post(
      [this, request = std::move(request), stream]() mutable { begin(std::move(request), stream); },
      true);
  return posted ? stream : nullptr;
}

void Engine::cancel(WorkId id) {
  // Not bounded: who wants to end work must not be refused.
  post([this, id] { end(id); }, false);
}

EngineStats Engine::stats() {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void Engine::start() {
  if (disk_ != nullptr) {
    disk_->start();
  }
  thread_ = std::thread([this] {
    while (true) {
      if (step()) {
        continue;
      }
      // Now and then something ends by its time to live.
      std::unique_lock lock(mutex_);
      posted_.wait_for(lock, std::chrono::seconds(1), [&] { return stopping_ || !inbox_.empty(); });
      if (stopping_) {
        return;
      }
    }
  });
}

void Engine::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  posted_.notify_one();
  if (thread_.joinable()) {
    thread_.join();
  }
  finish_files();
}

// ---- engine thread ----

bool Engine::step() {
  const CheckReport report([this] { return scheduler_.log().text() + scheduler_.describe(); });
  run_commands();
  const bool moved = run_documents();
  const StepPlan* plan = scheduler_.schedule(clock_.now_us());
  if (plan != nullptr) {
    const TimeUs start = clock_.now_us();
    device_.run(*plan, result_);
    const TimeUs now = clock_.now_us();
    trace_.step(*plan, result_, start, now);
    tell_progress(*plan);
    scheduler_.commit(result_, now);
    take_events(result_);
    trace_.counters(scheduler_.stats(), pool_.blocks_free(), now);
  } else {
    take_events({});
  }
  const std::lock_guard lock(mutex_);
  stats_.update(scheduler_, pool_, index_, store_, clock_.now_us());
  return !stopping_ && (moved || plan != nullptr);
}

void Engine::run_commands() {
  std::deque<Command> commands;
  {
    const std::lock_guard lock(mutex_);
    commands.swap(inbox_);
  }
  for (Command& command : commands) {
    command();
  }
}

// Fields have their lengths in front, so no two different ones give the same bytes.
std::string Engine::space(const std::string& tenant) const {
  return fmt::format("{:016x}{}:{}", model_.fingerprint(), tenant.size(), tenant);
}

// Of what stands behind a version of a document.
std::string Engine::chain_of(const FileKey& key) {
  return fmt::format("{}:{}#{}", key.id.size(), key.id, key.version);
}

void Engine::begin(GenerateRequest request, const std::shared_ptr<OutputStream>& stream) {
  if (request.document.empty()) {
    return serve(std::move(request), stream, {}, false);
  }
  const auto refuse = [stream](RefusalKind kind, const std::string& message) {
    OutputEvent event;
    if (kind == RefusalKind::kCancelled) {
      event.finish = FinishReason::kCancelled;
    } else {
      event.refusal = {kind, message};
    }
    stream->push(std::move(event), true);
  };
  const std::string id = request.document;
  if (!is_theirs(id, {request.tenant, request.groups})) {
    return refuse(RefusalKind::kNotFound, "no document " + id);
  }
  if (!is_ready(id, request.keep_ratio)) {
    return refuse(RefusalKind::kNotReady, "document " + id + " is not ready");
  }
  Waiting waiting{stream->id(), id, request.keep_ratio, {}, refuse, false};
  waiting.serve = [this, stream, request](const DocumentStore::Lease& lease, bool was_on_disk) {
    serve(request, stream, lease, was_on_disk);
  };
  wait_for_document(std::move(waiting));
}

void Engine::serve(GenerateRequest request, const std::shared_ptr<OutputStream>& stream,
                   const DocumentStore::Lease& lease, bool was_on_disk) {
  const auto refuse = [&](RefusalKind kind, std::string message) {
    OutputEvent event;
    event.refusal = {kind, std::move(message)};
    stream->push(std::move(event), true);
  };
  RequestSpec spec;
  spec.id = stream->id();
  spec.tenant = request.tenant;
  spec.priority = request.priority;
  spec.space = space(request.tenant);
  auto live = std::make_unique<LiveRequest>();
  if (lease.document != nullptr) {
    spec.document = lease.document;
    live->usage.keep_ratio = lease.version.keep_ratio;
    live->usage.was_on_disk = was_on_disk;
    live->usage.document_tokens = spec.document->logical_length();
    // The question's blocks depend on the very version that they were computed on. Only who asked
    // the same question before finds them, not the other readers of the document.
    spec.space += fmt::format("{}:{}#{}", lease.key.id.size(), lease.key.id, lease.key.version);
  }
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  const int64_t room = context_max_ - live->usage.document_tokens - prompt;
  const int64_t least = std::min<int64_t>(1, request.output_max);
  if (room < least) {
    return refuse(RefusalKind::kTooLarge,
                  fmt::format("the prompt is too long: {} tokens behind a document of {} leave no "
                              "room within {} positions",
                              prompt, live->usage.document_tokens, context_max_));
  }
  spec.prompt = request.prompt;
  spec.output_max = std::min(request.output_max, room);
  spec.choices = request.choices;
  spec.ignore_end = request.ignore_end;
  spec.prompt_logprobs = request.prompt_logprobs >= 0;
  // What was asked for at most ends where the memory does; a prompt that doesn't fit is refused.
  spec.output_max = std::max(least, scheduler_.output_room(spec));
  live->usage.prompt_tokens = prompt;
  live->stream = stream;
  live->open = request.choices;
  const Admission admission = scheduler_.submit(std::move(spec), clock_.now_us());
  if (admission != Admission::kAccepted) {
    return admission == Admission::kBusy
               ? refuse(RefusalKind::kBusy, "too many requests wait")
               : refuse(RefusalKind::kTooLarge,
                        "the request needs more KV memory than documents leave to requests");
  }
  trace_.submitted(stream->id(), false, clock_.now_us());
  stream->set_usage(live->usage);
  for (uint32_t k = 0; k < request.choices; ++k) {
    live->choices.push_back({StreamDecoder(tokenizer_), StopMatcher(request.stops)});
    ChoiceSampling sampling{request.sampling, request.top_logprobs, request.prompt_logprobs};
    sampling.params.seed += k;
    device_.begin({stream->id(), k}, sampling, request.prompt);
  }
  requests_[stream->id()] = std::move(live);
}

void Engine::end(WorkId id) {
  const auto found = std::find_if(waiting_.begin(), waiting_.end(),
                                  [&](const Waiting& waiting) { return waiting.id == id; });
  if (found == waiting_.end()) {
    scheduler_.cancel(id);
    return;
  }
  const Waiting waiting = std::move(*found);
  waiting_.erase(found);
  waiting.refuse(RefusalKind::kCancelled, "cancelled");
}

void Engine::take_events(const StepResult& result) {
  // Handling an event may end a choice, which is an event again.
  for (scheduler_.take_events(events_); !events_.empty(); scheduler_.take_events(events_)) {
    for (const Event& event : events_) {
      trace_.event(event, clock_.now_us());
      switch (event.kind) {
        case Event::Kind::kStarted: {
          LiveRequest& live = *requests_.at(event.key.request);
          live.usage.cached_tokens = event.done;
          live.usage.done_tokens = event.done;
          live.stream->set_usage(live.usage);
          break;
        }
        case Event::Kind::kPromptLogprobs: {
          const auto first = result.targets.begin() + event.slot;
          OutputEvent output;
          output.prompt.assign(first, first + event.total);
          requests_.at(event.key.request)->stream->push(std::move(output), false);
          break;
        }
        case Event::Kind::kToken:
          on_token(event, result);
          break;
        case Event::Kind::kFinished:
          on_finished(event, result);
          break;
        default:
          on_job(event);
      }
    }
  }
}

// How much of their prompts requests have behind them, as far as they are still in front of it. A
// request that was preempted computes some of it again.
void Engine::tell_progress(const StepPlan& plan) {
  for (const RowsWork& work : plan.rows) {
    const auto found = requests_.find(work.key.request);
    if (work.document_job || found == requests_.end()) {
      continue;
    }
    LiveRequest& live = *found->second;
    const int64_t end = work.first_position + work.rows - live.usage.document_tokens;
    const int64_t done = std::min(end, live.usage.prompt_tokens);
    if (done > live.usage.done_tokens) {
      live.usage.done_tokens = done;
      live.stream->set_progress(live.usage);
    }
  }
}

void Engine::on_token(const Event& event, const StepResult& result) {
  LiveRequest& live = *requests_.at(event.key.request);
  LiveChoice& choice = live.choices[event.key.choice];
  const auto slot = static_cast<size_t>(event.slot);
  OutputEvent output;
  output.choice = event.key.choice;
  output.token = event.token;
  output.logprob = result.logprobs[slot];
  output.tops = result.tops[slot];
  output.text = choice.stops.feed(choice.decoder.feed(event.token));
  live.stream->push(std::move(output), false);
  if (choice.stops.matched()) {
    scheduler_.stop(event.key);
  }
}

void Engine::on_finished(const Event& event, const StepResult& result) {
  LiveRequest& live = *requests_.at(event.key.request);
  LiveChoice& choice = live.choices[event.key.choice];
  OutputEvent output;
  output.choice = event.key.choice;
  output.finish = event.finish;
  if (event.finish == FinishReason::kEnd) {
    const auto slot = static_cast<size_t>(event.slot);
    output.end_token = event.token;
    output.logprob = result.logprobs[slot];
    output.tops = result.tops[slot];
  }
  if (!choice.stops.matched()) {
    output.text = choice.stops.feed(choice.decoder.flush());
    output.text += choice.stops.flush();
  }
  if (choice.stops.matched()) {
    output.finish = FinishReason::kStopString;
  }
  device_.end(event.key);
  const bool last = --live.open == 0;
  live.stream->push(std::move(output), last);
  if (last) {
    requests_.erase(event.key.request);
  }
}

}  // namespace pagezip
