#include "tests/sim/simulation.h"

#include <algorithm>
#include <iterator>

#include "tests/sim/seed_report.h"

namespace pagezip::sim {
namespace {

constexpr TokenId kEndToken = 0;

}  // namespace

Options Options::swarm(Prng& prng) {
  const std::vector<std::vector<bool>> models = {
      {true},
      {true, true},
      {false, true, false, false, true, false},  // two sliding groups
      {false, true, false, true, false},         // the second sliding group is padded
      {false, false},                            // nothing to compress
  };
  Options o;
  o.shape.is_global = models[prng.below(models.size())];
  const auto window = static_cast<int>(prng.range(2, 50));
  o.shape.groups = make_kv_groups(o.shape.is_global, window);
  o.shape.geometry.page = {KvType::kF16, KvType::kF16, prng.chance(0.8) ? 16 : 32, 16};
  o.shape.geometry.kv_heads = static_cast<int>(prng.range(1, 2));
  o.shape.geometry.layers_per_block = static_cast<int>(o.shape.groups[0].layers.size());
  o.shape.vocab = static_cast<int>(prng.range(4, 60));
  const auto last = std::find(o.shape.is_global.rbegin(), o.shape.is_global.rend(), true);
  SchedulerConfig& c = o.scheduler;
  c.score_layers = static_cast<int>(o.shape.is_global.rend() - last);
  c.rows_max = prng.chance(0.5) ? prng.range(8, 40) : prng.range(40, 300);
  c.running_max = prng.chance(0.2) ? prng.range(1, 3) : prng.range(4, 20);
  c.queue_max = prng.chance(0.2) ? prng.range(1, 4) : 40;
  c.output_min = prng.range(1, 20);
  c.ageing_us = prng.range(1'000, 1'000'000);
  c.patience_us = prng.range(1'000, 1'000'000);
  c.jobs_share = 0.3 + 0.7 * prng.uniform();
  c.step_target_ratio = 1 + 2 * prng.uniform();
  c.idle_step_us = static_cast<double>(prng.range(2'000, 40'000));
  c.end_tokens = {kEndToken};
  c.depth = static_cast<int>(prng.range(1, 3));
  o.cost.layers = static_cast<int>(o.shape.is_global.size());
  o.prompt_max = prng.range(1, 120);
  o.output_max = prng.chance(0.7) ? prng.range(1, 60) : prng.range(60, 200);
  o.document_max = prng.range(1, 150);
  const int64_t page = o.shape.geometry.page.page_tokens;
  const auto groups = static_cast<int64_t>(o.shape.groups.size());
  o.request_blocks = ((o.prompt_max + o.output_max) / page + 2 + 3 * (20 / page + 2)) * groups;
  const int64_t one = o.request_blocks + (2 * o.document_max / page + 2) * groups;
  o.blocks = prng.chance(0.7) ? one + prng.range(0, one) : one * prng.range(2, 8);
  o.requests = prng.range(3, 40);
  o.documents = prng.chance(0.3) ? 0 : prng.range(1, 8);
  o.tenants = static_cast<int>(prng.range(1, 3));
  o.arrive = 0.1 + 0.9 * prng.uniform();
  const auto rate = [&](double most) { return prng.chance(0.5) ? 0 : most * prng.uniform(); };
  o.cancel = rate(0.1);
  o.stop = rate(0.05);
  o.fail = rate(0.1);
  o.jump = rate(0.05);
  o.drop = rate(0.1);
  o.burst = rate(0.1);
  return o;
}

Simulation::Simulation(const Options& options, uint64_t seed, Marks& marks)
    : options_(options),
      prng_(seed ^ 0x5eedull),
      marks_(marks),
      pool_(options.shape.geometry, options.blocks),
      index_(std::make_unique<PrefixIndex>(pool_, options.shape.groups)),
      scheduler_(std::make_unique<Scheduler>(
          options.scheduler, CostModel(options.cost), pool_, *index_, options.shape.groups,
          [this](int64_t blocks, bool) { return reclaim(blocks); })),
      device_(options_.shape, truth_) {
  for (int i = 0; i < 3; ++i) {
    texts_.push_back(random_tokens(prng_.range(1, 80)));
  }
}

Simulation::~Simulation() = default;

void Simulation::fail(const std::string& what) {
  if (failure_.empty() && !what.empty()) {
    failure_ = what;
  }
}

std::vector<TokenId> Simulation::random_tokens(int64_t count) {
  std::vector<TokenId> tokens;
  for (int64_t i = 0; i < count; ++i) {
    tokens.push_back(
        static_cast<TokenId>(prng_.below(static_cast<uint64_t>(options_.shape.vocab))));
  }
  return tokens;
}

std::string Simulation::run() {
  while (failure_.empty() &&
         (arrived_requests_ < options_.requests || arrived_documents_ < options_.documents)) {
    tick(true);
  }
  return finish();
}

std::string Simulation::finish() {
  // Faults are off: everything must end within a bound that the work left gives.
  int64_t left = 200;
  for (const auto& [id, choices] : open_) {
    left +=
        20 + (options_.prompt_max + 2 * options_.output_max) * static_cast<int64_t>(choices.size());
  }
  left += static_cast<int64_t>(jobs_.size()) * (options_.document_max * 20 + 200);
  for (; failure_.empty() && !scheduler_->idle(); --left) {
    if (left == 0) {
      fail("work is left that doesn't end");
    }
    tick(false);
  }
  for (const auto& [id, choices] : open_) {
    fail("request " + std::to_string(id) + " never finished");
  }
  for (const auto& [id, done] : jobs_) {
    if (!done) {
      fail("job " + std::to_string(id) + " never finished");
    }
  }
  if (failure_.empty()) {
    check_end();
  }
  return failure_;
}

void Simulation::tick(bool faults) {
  ++ticks_;
  now_ += prng_.range(1, 20'000);
  if (faults) {
    arrive();
    inject();
  }
  plan_and_run(faults);
  audit();
}

void Simulation::arrive() {
  if (arrived_requests_ < options_.requests && prng_.chance(options_.arrive)) {
    const int64_t count = prng_.chance(options_.burst) ? options_.scheduler.queue_max + 5 : 1;
    marks_["burst"] += count > 1 ? 1 : 0;
    for (int64_t i = 0; i < count; ++i) {
      ++arrived_requests_;
      submit_request();
    }
  }
  if (arrived_documents_ < options_.documents && prng_.chance(options_.arrive / 2)) {
    ++arrived_documents_;
    submit_document();
  }
}

// One that its owner still has, or null.
Simulation::Document* Simulation::some_document() {
  // Documents that somebody reads can't be reclaimed: room for the largest request stays, as the
  // engine's quota sees to.
  int64_t room = options_.blocks - options_.request_blocks;
  std::vector<Document*> ready;
  for (Document& document : documents_) {
    const auto alive = document.alive.lock();
    room -= alive == nullptr ? 0 : alive->blocks_held();
    if (document.document != nullptr) {
      ready.push_back(&document);
    }
  }
  return ready.empty() || room < 0 ? nullptr : ready[prng_.below(ready.size())];
}

void Simulation::submit_request() {
  RequestSpec spec;
  spec.id = next_id_++;
  spec.tenant = "tenant" + std::to_string(prng_.below(static_cast<uint64_t>(options_.tenants)));
  spec.priority = static_cast<int>(prng_.below(3));
  spec.space = prng_.chance(0.8) ? "shared" : spec.tenant;
  spec.ignore_end = prng_.chance(0.3);
  const DocumentTruth* on = nullptr;
  if (const Document* document = prng_.chance(0.5) ? some_document() : nullptr) {
    spec.document = document->document;
    spec.space += document->space;
    on = document->truth.get();
    marks_["question on a compressed document"] += on->kept.has_value() ? 1 : 0;
    marks_["question on an extended document"] += on->parent != nullptr ? 1 : 0;
  }
  spec.prompt = random_tokens(prng_.range(1, options_.prompt_max));
  if (prng_.chance(0.7)) {
    const std::vector<TokenId>& text = texts_[prng_.below(texts_.size())];
    const auto most = std::min<int64_t>(static_cast<int64_t>(text.size()), options_.prompt_max);
    const int64_t length = prng_.chance(0.5) ? most : prng_.range(1, most);
    std::copy_n(text.begin(), std::min(length, static_cast<int64_t>(spec.prompt.size())),
                spec.prompt.begin());
  }
  spec.output_max = prng_.range(1, options_.output_max);
  spec.choices = prng_.chance(0.2) ? static_cast<uint32_t>(prng_.range(2, 4)) : 1;
  spec.prompt_logprobs = prng_.chance(0.2);
  if (spec.prompt_logprobs && prng_.chance(0.3)) {
    spec.output_max = 0;
  }
  submit(std::move(spec), on);
}

void Simulation::submit(RequestSpec spec, const DocumentTruth* on) {
  for (uint32_t k = 0; k < spec.choices; ++k) {
    truth_.choices.emplace(ChoiceKey{spec.id, k},
                           ChoiceTruth(spec, k, on, options_.shape.vocab, kEndToken));
  }
  prompts_[spec.id] = spec.prompt.size();
  const Admission admission = scheduler_->submit(spec, now_);
  marks_["busy"] += admission == Admission::kBusy ? 1 : 0;
  marks_["too large"] += admission == Admission::kTooLarge ? 1 : 0;
  if (admission == Admission::kAccepted) {
    for (uint32_t k = 0; k < spec.choices; ++k) {
      open_[spec.id][k] = {};
    }
    if (spec.prompt_logprobs) {
      scored_[spec.id] = 1;  // the first token has none
    }
  }
}

void Simulation::submit_document() {
  const Document* on = prng_.chance(0.4) ? some_document() : nullptr;
  if (on != nullptr && on->truth->parent == nullptr && prng_.chance(0.5) &&
      !truth_.jobs.at(on->job).spec.versions.empty()) {
    return submit_lower_ratio(*on);
  }
  if (on != nullptr && on->document->segments() >= pagezip::Document::kSegmentsMax) {
    on = nullptr;
  }
  DocumentSpec spec;
  spec.id = next_id_++;
  spec.tenant = "tenant" + std::to_string(prng_.below(static_cast<uint64_t>(options_.tenants)));
  spec.space = "shared";
  if (on != nullptr) {
    spec.space += on->space;
    spec.parent = on->document;
    ++marks_["extension"];
  } else if (prng_.chance(0.7)) {
    const std::vector<TokenId>& text = texts_[prng_.below(texts_.size())];
    spec.prefix.assign(text.begin(),
                       text.begin() + prng_.range(0, static_cast<int64_t>(text.size())));
  }
  spec.context = random_tokens(prng_.range(1, options_.document_max));
  const auto global = static_cast<int>(
      std::count(options_.shape.is_global.begin(), options_.shape.is_global.end(), true));
  if (global > 0 && prng_.chance(0.9)) {
    add_chunks(spec);
    const auto versions = prng_.range(1, 2);
    for (int64_t v = 0; v < versions; ++v) {
      const int64_t floor = prng_.chance(0.3) ? prng_.range(0, 5) : 0;
      spec.versions.push_back({0.05 + 0.95 * prng_.uniform(), prng_.chance(0.3), floor});
    }
  }
  submit(std::move(spec), on == nullptr ? nullptr : on->truth.get(), prng_.chance(0.2));
}

void Simulation::add_chunks(DocumentSpec& spec) {
  const auto tokens = static_cast<int64_t>(spec.context.size());
  const int64_t chunk = prng_.range(1, 80);
  for (int64_t begin = 0; begin < tokens; begin += chunk) {
    const int64_t end = std::min(begin + chunk, tokens);
    spec.chunks.push_back({begin, end, random_tokens(end - begin + prng_.range(1, 12))});
  }
}

// Some of the pairs that a version has, by the scores it was cut with.
void Simulation::submit_lower_ratio(const Document& source) {
  const JobTruth& job = truth_.jobs.at(source.job);
  DocumentSpec spec = job.spec;
  spec.id = next_id_++;
  spec.chunks.clear();
  spec.source = source.document;
  spec.source_cut = source.version;
  const VersionSpec cut = source.version.value_or(VersionSpec{1, prng_.chance(0.3), 0});
  spec.versions = {{cut.keep_ratio * (0.1 + 0.9 * prng_.uniform()), cut.uniform, cut.min_per_head}};
  ++marks_[spec.source_cut ? "a lower ratio of a cut version" : "a lower ratio of a full version"];
  submit(std::move(spec), nullptr, true);
}

void Simulation::submit(DocumentSpec spec, const DocumentTruth* behind, bool keeps_scores) {
  const WorkId id = spec.id;
  const auto global = static_cast<int>(
      std::count(options_.shape.is_global.begin(), options_.shape.is_global.end(), true));
  const auto truth =
      truth_.jobs.emplace(id, JobTruth(spec, behind, global, options_.shape.geometry.kv_heads));
  // What the truth knows of a text outlives the work on it.
  truth.first->second.spec.source.reset();
  truth.first->second.spec.parent.reset();
  if (!spec.versions.empty() && keeps_scores) {
    spec.scores = std::make_shared<ScoreSet>(truth.first->second.scores);
    ++marks_["kept scores"];
  }
  if (scheduler_->submit(std::move(spec), now_) == Admission::kAccepted) {
    jobs_[id] = false;
  }
}

void Simulation::cancel(WorkId id) {
  cancelled_[id] = true;
  marks_["cancelled"] += scheduler_->cancel(id) ? 1 : 0;
  take_events();
  audit();
}

void Simulation::stop(ChoiceKey key) {
  cancelled_[key.request] = true;
  scheduler_->stop(key);
  take_events();
  audit();
}

void Simulation::inject() {
  if (prng_.chance(options_.cancel) && next_id_ > 1) {
    cancel(static_cast<WorkId>(prng_.range(1, static_cast<int64_t>(next_id_) - 1)));
  }
  if (prng_.chance(options_.stop) && !open_.empty()) {
    // Who reads its text is slow: its choice is stopped late, or has ended by itself.
    const auto request = std::next(open_.begin(), prng_.range(0, ssize(open_) - 1));
    const auto choice = static_cast<uint32_t>(prng_.below(request->second.size()));
    stops_.emplace(ticks_ + prng_.range(0, 30), ChoiceKey{request->first, choice});
  }
  while (!stops_.empty() && stops_.begin()->first <= ticks_) {
    const ChoiceKey key = stops_.begin()->second;
    stops_.erase(stops_.begin());
    ++marks_[open_.contains(key.request) ? "stopped" : "stopped after its end"];
    stop(key);
  }
  if (prng_.chance(options_.fail)) {
    device_.fail_next();
  }
  if (prng_.chance(options_.jump)) {
    const bool back = prng_.chance(0.3);
    ++marks_[back ? "clock went back" : "clock jumped"];
    now_ = back ? prng_.range(0, now_) : now_ + prng_.range(1'000'000, 3'600'000'000);
  }
  if (prng_.chance(options_.drop) && !documents_.empty()) {
    documents_[prng_.below(documents_.size())].document.reset();
    scheduler_->memory_changed();
  }
}

// False if there is nothing to plan now.
bool Simulation::plan() {
  const int64_t preempted = scheduler_->stats().preemptions;
  const int64_t fences = scheduler_->fences();
  const StepPlan* plan = scheduler_->schedule(now_);
  // What is fenced comes free by itself.
  if (scheduler_->stats().preemptions - preempted > 1 && scheduler_->fences() - fences > 1) {
    fail("several were preempted though the first was enough");
  }
  if (plan != nullptr) {
    planned_.push_back(plan);
    marks_["copied tails"] += static_cast<int64_t>(plan->copies.size());
    marks_["fenced"] += scheduler_->fences();
    for (const RowsWork& work : plan->rows) {
      const auto scored = scored_.find(work.key.request);
      if (!work.document_job && scored != scored_.end()) {
        const int64_t row = work.first_position - truth_.choices.at(work.key).position;
        marks_["a scored row computed again"] +=
            row < static_cast<int64_t>(scored->second) - 1 ? 1 : 0;
      }
    }
    check_progress(*plan);
    trace(*plan);
  }
  take_events();
  return plan != nullptr;
}

// The oldest step in flight.
void Simulation::run_and_commit() {
  const StepPlan& plan = *planned_.front();
  planned_.pop_front();
  device_.run(plan, result_);
  fail(device_.failure());
  const double noise = 0.5 + prng_.uniform();
  result_.rows_us = plan.rows_us * noise;
  result_.tiles_us = plan.tiles_us * noise;
  result_.compacts_us = plan.compacts_us * noise;
  marks_["failed step"] += result_.failed ? 1 : 0;
  scheduler_->commit(result_, now_);
  take_events();
}

void Simulation::plan_and_run(bool faults) {
  while (scheduler_->in_flight() < options_.scheduler.depth && plan()) {
    if (faults && prng_.chance(0.3)) {
      break;  // sometimes the pipeline isn't full
    }
  }
  if (planned_.empty()) {
    // Nothing in flight: then work must be able to go on.
    idle_ticks_ = scheduler_->idle() ? 0 : idle_ticks_ + 1;
    if (idle_ticks_ > 3) {
      fail("work is left, but nothing is planned");
    }
    return;
  }
  idle_ticks_ = 0;
  run_and_commit();
}

int64_t Simulation::reclaim(int64_t blocks) {
  const int64_t before = pool_.blocks_available();
  for (Document& document : documents_) {
    if (pool_.blocks_available() - before >= blocks) {
      break;
    }
    document.document.reset();
  }
  marks_["documents reclaimed"] += pool_.blocks_available() > before ? 1 : 0;
  return pool_.blocks_available() - before;
}

std::string simulate(uint64_t seed, Marks& marks, uint64_t* trace) {
  const SeedReport report(seed);
  Prng prng(seed);
  // Not destroyed after a failure: the pool's destructor would find it too and end the process.
  auto simulation = std::make_unique<Simulation>(Options::swarm(prng), seed, marks);
  std::string failure = simulation->run();
  if (!failure.empty()) {
    failure += "\n" + simulation->log();
    (void)simulation.release();
  } else if (trace != nullptr) {
    *trace = simulation->trace();
  }
  return failure;
}

}  // namespace pagezip::sim
