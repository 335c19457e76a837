#include "engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "engine/calibration.h"

namespace pagezip {
namespace {

// Rows that repeat prompts may have beside a chunk's own text.
constexpr int64_t kRepeatRows = 256;

SchedulerConfig scheduler_config(const EngineOptions& options, const Model& model,
                                 const Tokenizer& tokenizer) {
  SchedulerConfig config = options.scheduler;
  const std::vector<bool>& global = model.config().is_global;
  config.score_layers =
      static_cast<int>(global.rend() - std::find(global.rbegin(), global.rend(), true));
  const auto ends = tokenizer.end_of_generation();
  config.end_tokens.assign(ends.begin(), ends.end());
  config.depth = 1;  // the CPU computes a step while nothing else can be planned
  return config;
}

void check_tokens(std::span<const TokenId> tokens, int vocab) {
  for (const TokenId token : tokens) {
    if (token < 0 || token >= vocab) {
      throw Error(ErrorKind::kUsage, fmt::format("token id {} is not in the vocabulary", token));
    }
  }
}

}  // namespace

struct Engine::LiveChoice {
  StreamDecoder decoder;
  StopMatcher stops;
  bool finished = false;
};

struct Engine::LiveRequest {
  std::shared_ptr<OutputStream> stream;
  std::vector<LiveChoice> choices;
  OutputUsage usage;
  size_t open = 0;  // choices
};

struct Engine::LiveDocument {
  struct Version {
    VersionSpec spec;
    std::shared_ptr<const Document> document;
  };
  std::string tenant;
  bool keeps_full = false;
  std::vector<VersionSpec> specs;  // that its job makes
  std::vector<Version> versions;   // by keep_ratio, smallest first
  int64_t last_use = 0;
};

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
      pool_(model.kv_geometry(options.kv_type, options.page_tokens), options.pool_blocks),
      index_(pool_, model.kv_groups()),
      device_(transformer_, pool_, options.chunk_tokens + kRepeatRows, clock),
      scheduler_(scheduler_config(options, model, tokenizer),
                 CostModel(options.cost.has_value() ? *options.cost
                                                    : calibrate(transformer_, pool_, clock)),
                 pool_, index_, model.kv_groups(),
                 [this](int64_t blocks) { return reclaim(blocks); }) {}

Engine::~Engine() {
  stop();
  run_commands();
  for (const auto& [id, request] : requests_) {
    scheduler_.cancel(id);
  }
  for (const auto& [id, task] : tasks_) {
    scheduler_.cancel(id);
  }
  take_events({});
}

// ---- any thread ----

bool Engine::post(Command command) {
  {
    const std::lock_guard lock(mutex_);
    if (inbox_.size() >= options_.inbox_max) {
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
  if (request.output_max < 1 || request.choices < 1) {
    throw Error(ErrorKind::kUsage, "a request must ask for at least one token of one choice");
  }
  check_tokens(request.prompt, model_.config().vocab);
  validate(request.sampling);
  const StopMatcher stops(request.stops);  // throws for an empty one
  std::shared_ptr<OutputStream> stream(new OutputStream(next_id_++, request.wake));
  const bool posted = post([this, request = std::move(request), stream]() mutable {
    begin(std::move(request), stream);
  });
  return posted ? stream : nullptr;
}

std::shared_ptr<DocumentTask> Engine::create_document(DocumentRequest request) {
  check_tokens(request.prefix, model_.config().vocab);
  check_tokens(request.context, model_.config().vocab);
  const auto tokens = static_cast<int64_t>(request.context.size());
  if (tokens == 0) {
    throw Error(ErrorKind::kUsage, "the document is empty");
  }
  int64_t repeat = 0;
  if (!request.versions.empty()) {
    repeat = request.prompts.rows_max(tokens, options_.chunk_tokens);
    if (model_.kv_groups().front().window > 0) {
      throw Error(ErrorKind::kUsage,
                  "the model has only sliding-window layers: there is nothing to compress");
    }
    if (repeat > options_.chunk_tokens + kRepeatRows) {
      throw Error(ErrorKind::kUsage, "the repeat prompt is too long");
    }
  }
  for (const VersionSpec& version : request.versions) {
    validate_keep_ratio(tokens, version.keep_ratio);
  }
  const auto all = static_cast<int64_t>(request.prefix.size()) + tokens + repeat;
  if (all > context_max_) {
    throw Error(ErrorKind::kUsage,
                fmt::format("the document is too long: with its repeat prompt it takes {} of {} "
                            "positions",
                            all, context_max_));
  }
  auto task = std::make_shared<DocumentTask>(next_id_++);
  const bool posted = post(
      [this, request = std::move(request), task]() mutable { begin(std::move(request), task); });
  return posted ? task : nullptr;
}

void Engine::cancel(WorkId id) {
  // Not through the bounded queue: who wants to end work must not be refused.
  const std::lock_guard lock(mutex_);
  inbox_.emplace_back([this, id] { scheduler_.cancel(id); });
  posted_.notify_one();
}

void Engine::drop_document(const std::string& id) {
  const std::lock_guard lock(mutex_);
  inbox_.emplace_back([this, id] {
    documents_.erase(id);
    scheduler_.memory_changed();
  });
  posted_.notify_one();
}

Stats Engine::stats() {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void Engine::start() {
  thread_ = std::thread([this] {
    while (true) {
      if (step()) {
        continue;
      }
      std::unique_lock lock(mutex_);
      posted_.wait(lock, [&] { return stopping_ || !inbox_.empty(); });
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
}

// ---- engine thread ----

bool Engine::step() {
  run_commands();
  const StepPlan* plan = scheduler_.schedule(clock_.now_us());
  if (plan == nullptr) {
    take_events({});
    return false;
  }
  device_.run(*plan, result_);
  scheduler_.commit(result_, clock_.now_us());
  take_events(result_);
  const std::lock_guard lock(mutex_);
  stats_ = scheduler_.stats();
  return !stopping_;
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

std::shared_ptr<const Document> Engine::find_version(LiveDocument& document,
                                                     std::optional<double> keep_ratio,
                                                     double& kept) {
  if (document.versions.empty()) {
    return nullptr;
  }
  const auto best = keep_ratio.has_value()
                        ? std::min_element(document.versions.begin(), document.versions.end(),
                                           [&](const auto& a, const auto& b) {
                                             return std::abs(a.spec.keep_ratio - *keep_ratio) <
                                                    std::abs(b.spec.keep_ratio - *keep_ratio);
                                           })
                        : document.versions.begin();
  document.last_use = clock_.now_us();
  kept = best->spec.keep_ratio;
  return best->document;
}

void Engine::begin(GenerateRequest request, std::shared_ptr<OutputStream> stream) {
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
  if (!request.document.empty()) {
    const auto found = documents_.find(request.document);
    if (found == documents_.end() || found->second->tenant != request.tenant) {
      return refuse(RefusalKind::kNotFound, "no document " + request.document);
    }
    spec.document = find_version(*found->second, request.keep_ratio, live->usage.keep_ratio);
    if (spec.document == nullptr) {
      return refuse(RefusalKind::kNotReady, "document " + request.document + " is not ready");
    }
    live->usage.document_tokens = spec.document->logical_length();
    // The question's blocks depend on the very version that they were computed on.
    spec.space +=
        fmt::format("{}:{}@{}", request.document.size(), request.document, live->usage.keep_ratio);
  }
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  const int64_t room = context_max_ - live->usage.document_tokens - prompt;
  if (room < 1) {
    return refuse(RefusalKind::kTooLarge,
                  fmt::format("the prompt is too long: {} tokens behind a document of {} leave no "
                              "room within {} positions",
                              prompt, live->usage.document_tokens, context_max_));
  }
  spec.prompt = request.prompt;
  spec.output_max = std::min(request.output_max, room);
  spec.choices = request.choices;
  spec.ignore_end = request.ignore_end;
  live->usage.prompt_tokens = prompt;
  live->stream = stream;
  live->open = request.choices;
  const Admission admission = scheduler_.submit(std::move(spec), clock_.now_us());
  if (admission != Admission::kAccepted) {
    return admission == Admission::kBusy
               ? refuse(RefusalKind::kBusy, "too many requests wait")
               : refuse(RefusalKind::kTooLarge, "the request needs more KV memory than there is");
  }
  stream->set_usage(live->usage);
  for (uint32_t k = 0; k < request.choices; ++k) {
    live->choices.push_back({StreamDecoder(tokenizer_), StopMatcher(request.stops)});
    ChoiceSampling sampling{request.sampling, request.top_logprobs};
    sampling.params.seed += k;
    device_.begin({stream->id(), k}, sampling, request.prompt);
  }
  requests_[stream->id()] = std::move(live);
}

void Engine::begin(DocumentRequest request, const std::shared_ptr<DocumentTask>& task) {
  const auto fail = [&](const std::string& why) {
    task->update([&](DocumentTask::Status& status) {
      status.state = DocumentTask::State::kFailed;
      status.error = why;
    });
  };
  if (documents_.contains(request.id)) {
    return fail("document " + request.id + " exists already");
  }
  DocumentSpec spec;
  spec.id = task->id();
  spec.tenant = request.tenant;
  spec.priority = request.priority;
  spec.space = space(request.tenant);
  spec.prefix = std::move(request.prefix);
  spec.context = std::move(request.context);
  spec.versions = std::move(request.versions);
  if (!spec.versions.empty()) {
    spec.chunks = make_score_chunks(spec.context, request.prompts, options_.chunk_tokens);
  }
  const std::vector<VersionSpec> versions = spec.versions;
  const Admission admission = scheduler_.submit(std::move(spec), clock_.now_us());
  if (admission != Admission::kAccepted) {
    return fail(admission == Admission::kBusy ? "too many documents wait"
                                              : "the document needs more KV memory than there is");
  }
  auto document = std::make_unique<LiveDocument>();
  document->tenant = request.tenant;
  document->keeps_full = request.keep_full || versions.empty();
  document->specs = versions;
  documents_[request.id] = std::move(document);
  tasks_[task->id()] = {request.id, task};
}

void Engine::take_events(const StepResult& result) {
  // Handling an event may end a choice, which is an event again.
  for (std::vector<Event> events = scheduler_.take_events(); !events.empty();
       events = scheduler_.take_events()) {
    for (const Event& event : events) {
      switch (event.kind) {
        case Event::Kind::kStarted: {
          LiveRequest& live = *requests_.at(event.key.request);
          live.usage.cached_tokens = event.done;
          live.stream->set_usage(live.usage);
          break;
        }
        case Event::Kind::kToken:
          on_token(event, result);
          break;
        case Event::Kind::kFinished:
          on_finished(event);
          break;
        default:
          on_job(event);
      }
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

void Engine::on_finished(const Event& event) {
  LiveRequest& live = *requests_.at(event.key.request);
  LiveChoice& choice = live.choices[event.key.choice];
  OutputEvent output;
  output.choice = event.key.choice;
  output.finish = event.finish;
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

void Engine::on_job(const Event& event) {
  const auto found = tasks_.find(event.key.request);
  CHECK(found != tasks_.end());
  const auto& [id, task] = found->second;
  const auto document = documents_.find(id);  // it may have been dropped meanwhile
  const auto add = [&](const VersionSpec& spec) {
    if (document == documents_.end()) {
      return;
    }
    std::vector<LiveDocument::Version>& versions = document->second->versions;
    const auto place =
        std::upper_bound(versions.begin(), versions.end(), spec.keep_ratio,
                         [](double ratio, const auto& v) { return ratio < v.spec.keep_ratio; });
    versions.insert(place, {spec, event.document});
  };
  switch (event.kind) {
    case Event::Kind::kProgress:
      task->update([&](DocumentTask::Status& status) {
        status.stage = event.stage;
        status.done = event.done;
        status.total = event.total;
      });
      break;
    case Event::Kind::kFullReady:
      task->update(
          [&](DocumentTask::Status& status) { status.full_bytes = event.document->kv_bytes(); });
      if (document != documents_.end() && document->second->keeps_full &&
          document->second->versions.empty()) {
        add(VersionSpec{});
      }
      break;
    case Event::Kind::kVersionReady: {
      CHECK(document == documents_.end() || event.version < document->second->specs.size());
      const VersionSpec spec =
          document == documents_.end() ? VersionSpec{} : document->second->specs[event.version];
      add(spec);
      task->update([&](DocumentTask::Status& status) {
        status.versions.push_back({spec, event.document->kv_bytes()});
      });
      break;
    }
    case Event::Kind::kJobDone:
    case Event::Kind::kJobFailed: {
      const bool done = event.kind == Event::Kind::kJobDone;
      if (!done && document != documents_.end()) {
        documents_.erase(document);
      }
      task->update([&](DocumentTask::Status& status) {
        status.state = done ? DocumentTask::State::kDone : DocumentTask::State::kFailed;
        status.error = event.error;
      });
      tasks_.erase(found);
      break;
    }
    default:
      break;
  }
}

// Versions that only the engine holds, least recently used documents first.
int64_t Engine::reclaim(int64_t blocks) {
  const int64_t before = pool_.blocks_available();
  std::vector<LiveDocument*> order;
  order.reserve(documents_.size());
  for (const auto& [id, document] : documents_) {
    order.push_back(document.get());
  }
  std::sort(order.begin(), order.end(),
            [](const auto* a, const auto* b) { return a->last_use < b->last_use; });
  for (LiveDocument* document : order) {
    for (size_t v = document->versions.size(); v-- > 0;) {
      if (pool_.blocks_available() - before >= blocks) {
        return pool_.blocks_available() - before;
      }
      if (document->versions[v].document.use_count() == 1) {
        document->versions.erase(document->versions.begin() + static_cast<int64_t>(v));
      }
    }
  }
  return pool_.blocks_available() - before;
}

}  // namespace pagezip
