#include "scheduler/scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/mutant.h"

namespace pagezip {
namespace {

// Pairs that a row reads of a document, on average over the heads.
int64_t keys_of(const Document* document) {
  if (document == nullptr || document->global_layers() == 0) {
    return 0;
  }
  return document->pairs() / (int64_t{document->global_layers()} * document->geometry().kv_heads);
}

}  // namespace

void StepPlan::clear() {
  rows.clear();
  copies.clear();
  tiles.clear();
  selects.clear();
  compacts.clear();
  tokens.clear();
  targets.clear();
  view_count = 0;
  slots = 0;
  batch_rows = 0;
  pairs = 0;
  rows_us = 0;
  tiles_us = 0;
  compacts_us = 0;
  document_rows_us = 0;
  decode_only = true;
}

void StepResult::clear() {
  failed = false;
  tokens.clear();
  logprobs.clear();
  tops.clear();
  targets.clear();
  selections.clear();
  rows_us = 0;
  tiles_us = 0;
  compacts_us = 0;
}

std::string DecisionLog::text() const {
  std::string text;
  const uint64_t count = std::min<uint64_t>(next_, entries_.size());
  for (uint64_t i = next_ - count; i < next_; ++i) {
    const Entry& e = entries_[i % entries_.size()];
    text += fmt::format("{:>8} {:>12} {:<12} {:>8} {:>8} {:>8}\n", e.step, e.time, e.what, e.id,
                        e.a, e.b);
  }
  return text;
}

Scheduler::Scheduler(const SchedulerConfig& config, const CostModel& cost, BlockPool& pool,
                     PrefixIndex& index, std::span<const KvGroup> groups, Reclaim reclaim)
    : config_(config),
      cost_(cost),
      pool_(pool),
      index_(index),
      groups_(groups.begin(), groups.end()),
      reclaim_(std::move(reclaim)),
      plans_(static_cast<size_t>(config.depth)) {
  CHECK_GT(config.depth, 0);
  CHECK_GT(config.rows_max, 0);
  std::sort(config_.end_tokens.begin(), config_.end_tokens.end());
}

Scheduler::~Scheduler() = default;

Event& Scheduler::emit(Event::Kind kind, ChoiceKey key) {
  Event& event = events_.emplace_back();
  event.kind = kind;
  event.key = key;
  return event;
}

// A tenant that was away starts where the least served of those present stands: it can't save up.
TenantState& Scheduler::open_tenant(const std::string& name) {
  const auto found = tenants_.find(name);
  if (found == tenants_.end()) {
    double served = 0;
    for (const auto& [other, state] : tenants_) {
      served = served == 0 ? state.served_us : std::min(served, state.served_us);
    }
    tenants_[name].served_us = served;
  }
  TenantState& state = tenants_[name];
  ++state.open;
  return state;
}

void Scheduler::close_tenant(const std::string& name) {
  const auto found = tenants_.find(name);
  CHECK(found != tenants_.end());
  if (--found->second.open == 0) {
    tenants_.erase(found);
  }
}

// Beside the documents that others use it must be able to run to its end.
bool Scheduler::fits(const RequestSpec& spec, int64_t output) const {
  const Sequence empty(pool_, groups_, 0);
  const auto prompt = static_cast<int64_t>(spec.prompt.size());
  int64_t most = blocks_for(empty, prompt + output) + blocks_for_fork(spec);
  most += std::max(config_.document_blocks,
                   spec.document == nullptr ? 0 : spec.document->blocks_held());
  return most <= pool_.blocks_total() && spec.choices <= config_.running_max;
}

int64_t Scheduler::output_room(const RequestSpec& spec) const {
  int64_t fitting = 0;
  int64_t not_fitting = spec.output_max + 1;
  while (not_fitting - fitting > 1) {
    const int64_t middle = fitting + (not_fitting - fitting) / 2;
    (fits(spec, middle) ? fitting : not_fitting) = middle;
  }
  return fitting;
}

Admission Scheduler::submit(RequestSpec spec, TimeUs now) {
  CHECK(!spec.prompt.empty());
  CHECK_GE(spec.output_max, 0);
  CHECK_GT(spec.choices, 0u);
  CHECK(!requests_.contains(spec.id) && !jobs_.contains(spec.id));
  now_ = now;
  if (!fits(spec, spec.output_max)) {
    return Admission::kTooLarge;
  }
  if (static_cast<int64_t>(waiting_.size()) >= config_.queue_max) {
    return Admission::kBusy;
  }
  if (MUTANT(kSaltLeftOut)) {
    spec.space.clear();
  }
  auto request = std::make_unique<RequestState>();
  request->arrived = now;
  request->tenant = &open_tenant(spec.tenant);
  request->document_keys = keys_of(spec.document.get());
  request->spec = std::move(spec);
  Choice& choice = add_choice(*request, 0);
  choice.tokens = request->spec.prompt;
  choice.waiting_since = now;
  waiting_.push_back(&choice);
  requests_[request->spec.id] = std::move(request);
  admission_due_ = true;
  return Admission::kAccepted;
}

Admission Scheduler::submit(DocumentSpec spec, TimeUs now) {
  CHECK(!spec.context.empty());
  CHECK(spec.parent == nullptr || spec.prefix.empty());
  CHECK(spec.source == nullptr || (spec.scores != nullptr && !spec.versions.empty() &&
                                   spec.source->compressed() == spec.source_cut.has_value()));
  CHECK(!requests_.contains(spec.id) && !jobs_.contains(spec.id));
  now_ = now;
  const Sequence empty(pool_, groups_, 0);
  const auto length = static_cast<int64_t>(spec.prefix.size() + spec.context.size());
  int64_t most = spec.source != nullptr ? 0 : blocks_for(empty, length);
  for (const VersionSpec& version : spec.versions) {
    most += blocks_for_version(spec, version);
  }
  if (most > pool_.blocks_total() - config_.document_blocks) {
    return Admission::kTooLarge;
  }
  if (static_cast<int64_t>(waiting_jobs_.size()) >= config_.queue_max) {
    return Admission::kBusy;
  }
  auto job = std::make_unique<Job>();
  job->arrived = now;
  job->tenant = &open_tenant(spec.tenant);
  job->tokens = spec.prefix;
  job->tokens.insert(job->tokens.end(), spec.context.begin(), spec.context.end());
  job->parent_keys = keys_of(spec.parent.get());
  job->spec = std::move(spec);
  waiting_jobs_.push_back(job.get());
  jobs_[job->spec.id] = std::move(job);
  admission_due_ = true;
  return Admission::kAccepted;
}

bool Scheduler::cancel(WorkId id) {
  if (const auto job = jobs_.find(id); job != jobs_.end()) {
    log_.add(step_, now_, "cancel job", id);
    end_job(*job->second, "cancelled");
    return true;
  }
  const auto found = requests_.find(id);
  if (found == requests_.end()) {
    return false;
  }
  log_.add(step_, now_, "cancel", id);
  std::vector<Choice*> choices;
  for (const auto& [number, choice] : found->second->choices) {
    choices.push_back(choice.get());
  }
  for (Choice* choice : choices) {
    finish(*choice, FinishReason::kCancelled);
  }
  return true;
}

void Scheduler::stop(ChoiceKey key) {
  if (Choice* choice = find(key)) {
    finish(*choice, FinishReason::kStopString);
  }
}

// The part of the pool that nothing can be evicted from. Counting looks at every cached block, so
// now and then must do, and only for documents.
double Scheduler::occupancy() {
  constexpr uint64_t kSteps = 64;
  if (occupancy_step_ == 0 || step_ - occupancy_step_ >= kSteps) {
    occupancy_step_ = step_;
    const int64_t usable = pool_.blocks_available() + index_.blocks_idle();
    occupancy_ = 1 - static_cast<double>(usable) / static_cast<double>(pool_.blocks_total());
  }
  return occupancy_;
}

const StepPlan* Scheduler::schedule(TimeUs now) {
  CHECK_LT(in_flight(), config_.depth);
  now_ = now;
  admit();
  StepPlan& plan = plans_[++step_ % plans_.size()];
  plan.clear();
  plan.step = step_;
  plan.epoch = epoch_;
  copies_in_flight_.emplace_back();
  plan_copies(plan);
  plan_decode(plan);
  const bool decoding = !plan.rows.empty();
  const double decode_us = cost_.rows_us(plan.batch_rows, plan.pairs, plan.slots, true);
  for (const RowsWork& work : plan.rows) {
    lanes_[work.lane]->request->tenant->served_us +=
        decode_us / static_cast<double>(plan.rows.size());
  }
  const double target =
      config_.step_target_us > 0 ? config_.step_target_us : config_.step_target_ratio * decode_us;
  const bool background = !running_jobs_.empty();
  const double floor = background ? background_floor(occupancy()) : 0;
  const double budget = decoding ? step_budget_us(target, decode_us, floor, background)
                                 : std::max(config_.idle_step_us, config_.step_target_us);
  const double room =
      decoding ? background_room_us(budget, decode_us, cost_.margin(CostKind::kScore)) : budget;
  const bool starve = MUTANT(kStarvationByScoring) && background;
  const double used = starve ? 0 : plan_prompts(plan, background ? room - floor * budget : room);
  plan_jobs(plan, room - used, floor * budget);
  const int64_t logits = plan.slots + ssize(plan.targets);
  plan.rows_us = cost_.rows_us(plan.batch_rows, plan.pairs, logits, plan.decode_only);
  if (plan.empty()) {
    copies_in_flight_.pop_back();
    --step_;
    return nullptr;
  }
  in_flight_.push_back(&plan);
  return &plan;
}

void Scheduler::commit(const StepResult& result, TimeUs now) {
  CHECK(!in_flight_.empty());
  now_ = now;
  StepPlan& plan = *in_flight_.front();
  in_flight_.pop_front();
  CHECK_EQ(result.step, plan.step);
  committed_step_ = plan.step;
  ++stats_.steps;
  if (result.failed) {
    ++stats_.steps_failed;
    if (plan.epoch == epoch_) {
      log_.add(step_, now_, "failed", plan.step);
      rewind();
    }
  } else {
    CHECK_EQ(static_cast<int64_t>(result.tokens.size()), plan.slots);
    CHECK_EQ(result.targets.size(), plan.targets.size());
    CHECK_EQ(result.selections.size(), plan.selects.size());
    commit_batch(plan, result);
    for (const ScoreTile& tile : plan.tiles) {
      commit_tile(tile);
    }
    for (size_t i = 0; i < plan.selects.size(); ++i) {
      commit_select(plan.selects[i], result.selections[i]);
    }
    for (const CompactWork& work : plan.compacts) {
      commit_compact(work);
    }
    cost_.observe(plan.decode_only ? CostKind::kDecode : CostKind::kPrefill, plan.rows_us,
                  result.rows_us);
    cost_.observe(CostKind::kScore, plan.tiles_us, result.tiles_us);
    cost_.observe(CostKind::kCompact, plan.compacts_us, result.compacts_us);
    count_step(plan, result);
  }
  copies_in_flight_.pop_front();
  std::erase_if(copies_, [&](const ForkCopy& copy) { return fork_target(copy) == nullptr; });
  plan.clear();
  release_fences();
}

void Scheduler::count_step(const StepPlan& plan, const StepResult& result) {
  stats_.rows_us += result.rows_us;
  stats_.tiles_us += result.tiles_us;
  stats_.compacts_us += result.compacts_us;
  const StepKind kind = !plan.compacts.empty() || !plan.selects.empty() ? StepKind::kCompact
                        : !plan.tiles.empty()                           ? StepKind::kScore
                        : !plan.decode_only                             ? StepKind::kPrompt
                                                                        : StepKind::kDecode;
  const auto us = [](double time) { return static_cast<int64_t>(time); };
  histograms_.step_us[static_cast<size_t>(kind)].add(
      us(result.rows_us + result.tiles_us + result.compacts_us));
  histograms_.step_rows.add(plan.batch_rows);
  if (plan.slots > 0) {
    // A batch is measured as a whole: documents get the share that was predicted for them.
    const double share = plan.rows_us > 0 ? plan.document_rows_us / plan.rows_us : 0;
    histograms_.delay_us.add(us(result.rows_us * share + result.tiles_us + result.compacts_us));
  }
}

// Everything in flight is void. Rows go back to what is committed; the blocks behind that stay with
// their sequences and are written again. A score chunk starts anew.
void Scheduler::rewind() {
  ++epoch_;
  for (std::vector<ForkCopy>& copies : copies_in_flight_) {
    std::move(copies.begin(), copies.end(), std::back_inserter(copies_));
    copies.clear();
  }
  std::erase_if(copies_, [&](const ForkCopy& copy) { return fork_target(copy) == nullptr; });
  std::vector<Choice*> targets;
  targets.reserve(copies_.size());
  for (const ForkCopy& copy : copies_) {
    targets.push_back(fork_target(copy));
  }
  for (Choice* choice : running_) {
    choice->lane.planned = choice->lane.committed;
    choice->lane.incarnation = ++incarnation_;
    choice->pending = MUTANT(kPendingKept) ? choice->pending : 0;
  }
  for (Job* job : running_jobs_) {
    job->lane.planned = job->lane.committed;
    job->lane.incarnation = ++incarnation_;
    if (!MUTANT(kResumedChunk)) {
      job->chunk = job->chunks_done;
      job->layer = 0;
      job->row = 0;
    }
    job->selecting = false;
    job->layers_planned = job->layers_done;
  }
  for (size_t i = 0; i < copies_.size(); ++i) {
    copies_[i].incarnation = targets[i]->lane.incarnation;
  }
}

void Scheduler::count_refs(std::span<uint32_t> refs) const {
  const auto count_job = [&](const Job& job) {
    if (job.lane.sequence != nullptr) {
      job.lane.sequence->count_refs(refs);
    }
    if (job.builder.has_value() && job.layers_done < job.full->global_layers()) {
      job.builder->count_refs(refs);
    }
  };
  for (const Choice* choice : running_) {
    choice->lane.sequence->count_refs(refs);
  }
  for (const auto& [id, job] : jobs_) {
    count_job(*job);
  }
  for (const Fence& fence : fences_) {
    if (fence.sequence != nullptr) {
      fence.sequence->count_refs(refs);
    }
    if (fence.job != nullptr) {
      count_job(*fence.job);
    }
  }
  const auto count_copies = [&](const std::vector<ForkCopy>& copies) {
    for (const ForkCopy& copy : copies) {
      for (const BlockRun& run : copy.source) {
        run.blocks.count_refs(refs);
      }
    }
  };
  count_copies(copies_);
  for (const std::vector<ForkCopy>& copies : copies_in_flight_) {
    count_copies(copies);
  }
}

int64_t Scheduler::blocks_reserved() const {
  int64_t blocks = 0;
  for (const Choice* choice : running_) {
    blocks += choice->lane.blocks.blocks() + choice->lane.fork_blocks.blocks();
  }
  for (const auto& [id, job] : jobs_) {
    blocks += job->lane.blocks.blocks();
  }
  return blocks;
}

std::string Scheduler::describe() const {
  std::string text =
      fmt::format("blocks: {} free, {} reserved, {} in all; {} fences\n", pool_.blocks_free(),
                  pool_.blocks_reserved(), pool_.blocks_total(), fences_.size());
  for (const auto& [id, request] : requests_) {
    for (const auto& [number, choice] : request->choices) {
      const Lane& lane = choice->lane;
      text += fmt::format(
          "choice {}/{} {}: {} prompt, {} output, {} planned, {} done, {} blocks + {}\n", id,
          number, choice->running() ? "runs" : "waits", choice->prompt, choice->outputs,
          lane.planned, lane.committed, choice->running() ? lane.sequence->blocks_held() : 0,
          lane.blocks.blocks());
    }
  }
  for (const auto& [id, job] : jobs_) {
    text +=
        fmt::format("job {}: stage {}, {} of {} rows, chunk {}, version {}, {} blocks reserved\n",
                    id, static_cast<int>(job->stage), job->lane.committed, job->tokens.size(),
                    job->chunk, job->version, job->lane.blocks.blocks());
  }
  return text;
}

std::string Scheduler::audit() const {
  size_t choices = 0;
  for (const auto& [id, request] : requests_) {
    choices += request->choices.size();
    for (const auto& [number, choice] : request->choices) {
      const Lane& lane = choice->lane;
      const std::string name = fmt::format("choice {}/{}", id, number);
      if (lanes_[choice->lane_index] != choice.get()) {
        return name + " lost its lane";
      }
      const bool waits =
          std::find(waiting_.begin(), waiting_.end(), choice.get()) != waiting_.end();
      const bool runs = std::find(running_.begin(), running_.end(), choice.get()) != running_.end();
      if (waits == runs || runs != choice->running()) {
        return name + " is not in one queue";
      }
      if (!runs && lane.blocks.blocks() > 0) {
        return name + " waits and holds blocks";
      }
      if (runs && (lane.committed > lane.planned || lane.planned > lane.sequence->length())) {
        return name + " has its rows out of order";
      }
      if (static_cast<int64_t>(choice->tokens.size()) !=
          static_cast<int64_t>(request->spec.prompt.size()) + choice->outputs) {
        return name + " lost tokens";
      }
    }
  }
  if (choices != running_.size() + waiting_.size()) {
    return "a queue has choices that don't exist";
  }
  if (!std::is_sorted(running_.begin(), running_.end(),
                      [](const Choice* a, const Choice* b) { return a->key < b->key; })) {
    return "running choices are out of order";
  }
  if (static_cast<int64_t>(running_.size()) > config_.running_max) {
    return "too many choices run";
  }
  if (jobs_.size() != running_jobs_.size() + waiting_jobs_.size()) {
    return "a job is lost";
  }
  return "";
}

Stats Scheduler::stats() const {
  Stats stats = stats_;
  stats.running = static_cast<int64_t>(running_.size());
  stats.waiting = static_cast<int64_t>(waiting_.size());
  stats.jobs_running = static_cast<int64_t>(running_jobs_.size());
  stats.jobs_waiting = static_cast<int64_t>(waiting_jobs_.size());
  return stats;
}

void Scheduler::take_events(std::vector<Event>& events) {
  events.clear();
  events.swap(events_);
}

bool Scheduler::idle() const {
  return requests_.empty() && jobs_.empty() && in_flight_.empty() && fences_.empty() &&
         copies_.empty();
}

}  // namespace pagezip
