// Batches: which rows of which sequences a step computes, and what their tokens lead to.
#include <algorithm>

#include "base/check.h"
#include "base/mutant.h"
#include "scheduler/scheduler.h"

namespace pagezip {
namespace {

// The books of some hundred choices are in no near cache any more after a step of the model. So
// what a row will touch is asked for some rows ahead: of `far` itself, and of what `near` points
// to. Measured: it spares a fifth of a step's planning.
void prefetch(const Choice* far, const Choice* near) {
  constexpr size_t kLine = 64;
  for (size_t at = 0; far != nullptr && at < sizeof(Choice); at += kLine) {
    __builtin_prefetch(reinterpret_cast<const std::byte*>(far) + at);
  }
  if (near != nullptr && near->running()) {
    near->lane.sequence->prefetch();
    __builtin_prefetch(&near->request->spec.document);
    __builtin_prefetch(&near->request->document_keys);
    __builtin_prefetch(near->tokens.data() + near->tokens.size());
  }
}
constexpr size_t kFar = 8;  // rows ahead
constexpr size_t kNear = 4;

// Rows of a prompt that are planned even where the budget has no room, so that it goes on.
constexpr int64_t kLeastRows = 16;

}  // namespace

// Null if the choice ended or was preempted before its copy was made.
Choice* Scheduler::fork_target(const ForkCopy& copy) const {
  Choice* choice = find(copy.target);
  return choice != nullptr && choice->lane.incarnation == copy.incarnation ? choice : nullptr;
}

void Scheduler::plan_copies(StepPlan& plan) {
  std::vector<ForkCopy>& in_flight = copies_in_flight_.back();
  for (ForkCopy& copy : copies_) {
    Choice* target = fork_target(copy);
    if (target == nullptr) {
      continue;
    }
    Lane& lane = target->lane;
    CopyWork work;
    work.first_pair = copy.first_pair;
    work.end_pair = copy.end_pair;
    work.first_source = plan.view_count;
    for (const BlockRun& run : copy.source) {
      plan.add_view().push(uniform_segment(pool_, run, lane.sequence->first_position()));
    }
    work.first_target = plan.view_count;
    for (int g = 0; g < lane.sequence->groups(); ++g) {
      plan.add_view().push(lane.sequence->segment(g));
    }
    lane.last_step = plan.step;
    plan.copies.push_back(work);
    in_flight.push_back(std::move(copy));
  }
  copies_.clear();
}

// Every running choice whose prompt is done gets a row, oldest first: the oldest can displace all
// others, so at least one goes on.
void Scheduler::plan_decode(StepPlan& plan) {
  for (size_t i = 0; i < running_.size() && plan.batch_rows < config_.rows_max; ++i) {
    Choice& choice = *running_[i];
    if (i + kFar < running_.size()) {
      prefetch(running_[i + kFar], running_[i + kNear]);
    }
    const auto known = static_cast<int64_t>(choice.tokens.size());
    // Never a row that is known to be beyond the last token.
    const bool last = choice.outputs + choice.pending >= choice.request->spec.output_max;
    if (!choice.decoding() || last || choice.lane.planned >= known + choice.pending ||
        !ensure(choice.lane, choice.lane.planned + 1, choice.key)) {
      continue;
    }
    const bool sampled = choice.lane.planned < known;
    RowsWork& work =
        plan_rows(plan, choice.lane, choice.tokens, choice.request->spec.document.get(),
                  choice.request->document_keys, 1);
    work.key = choice.key;
    work.lane = choice.lane_index;
    if (!sampled) {
      work.token_from = choice.last_sample;
    }
    work.first_slot = plan.slots++;
    work.slots = 1;
    ++choice.pending;
    choice.last_sample = {plan.step, work.first_slot};
    ++stats_.rows_decode;
  }
}

double Scheduler::plan_prompts(StepPlan& plan, double budget_us) {
  std::vector<std::pair<Rank, Choice*>> candidates;
  for (Choice* choice : running_) {
    if (!choice->decoding()) {
      candidates.emplace_back(rank(*choice), choice);
    }
  }
  std::sort(candidates.begin(), candidates.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  double used = 0;
  bool first = true;
  for (const auto& candidate : candidates) {
    Choice& choice = *candidate.second;
    Lane& lane = choice.lane;
    const RequestSpec& spec = choice.request->spec;
    const int64_t limit =
        std::min(choice.prompt - lane.planned, config_.rows_max - plan.batch_rows);
    const int64_t keys = choice.request->document_keys + lane.planned;
    const bool logits = choice.request->scores();
    int64_t rows = cost_.rows_within(plan.batch_rows, limit, keys, logits, budget_us - used);
    if (first) {
      rows = std::max(rows, std::min(limit, kLeastRows));
    }
    // An earlier candidate may have displaced it.
    if (rows <= 0 || !choice.running() || !ensure(lane, lane.planned + rows, choice.key)) {
      continue;
    }
    first = false;
    const double cost = cost_.more_rows_us(plan.batch_rows, rows,
                                           rows * keys + rows * (rows - 1) / 2, logits ? rows : 0);
    used += cost;
    choice.request->tenant->served_us += cost;
    plan.decode_only = false;
    RowsWork& work = plan_rows(plan, lane, choice.tokens, spec.document.get(),
                               choice.request->document_keys, rows);
    work.key = choice.key;
    work.lane = choice.lane_index;
    if (logits) {
      plan_targets(plan, work, choice);
    }
    if (lane.planned == choice.prompt && spec.output_max > 0) {
      work.first_slot = plan.slots;
      work.slots = choice.request->forked ? 1 : spec.choices;
      plan.slots += work.slots;
      choice.pending = 1;
      choice.last_sample = {plan.step, work.first_slot};
    }
    stats_.rows_prompt += rows;
  }
  return used;
}

// Of the rows just planned, those that nobody was told of yet. The last row of a prompt has no
// token of the prompt behind it.
void Scheduler::plan_targets(StepPlan& plan, RowsWork& work, const Choice& choice) {
  const std::vector<TokenId>& prompt = choice.request->spec.prompt;
  const int64_t begin = choice.lane.planned - work.rows;
  const int64_t first = std::max(begin, choice.request->scored);
  const int64_t end = std::min(choice.lane.planned, ssize(prompt) - 1);
  if (first >= end) {
    return;
  }
  work.target_row = first - begin;
  work.targets = end - first;
  work.first_target = ssize(plan.targets);
  plan.targets.insert(plan.targets.end(), prompt.begin() + first + 1, prompt.begin() + end + 1);
}

RowsWork& Scheduler::plan_rows(StepPlan& plan, Lane& lane, const std::vector<TokenId>& tokens,
                               const Document* document, int64_t document_keys, int64_t rows) {
  const int64_t keys = lane.planned + document_keys;
  plan.pairs += rows * keys + rows * (rows + 1) / 2;
  RowsWork& work = plan.rows.emplace_back();
  work.incarnation = lane.incarnation;
  work.first_token = static_cast<int64_t>(plan.tokens.size());
  work.rows = rows;
  work.first_position = lane.sequence->first_position() + lane.planned;
  work.first_view = plan.view_count;
  const auto known = static_cast<int64_t>(tokens.size());
  if (lane.planned >= known) {  // an earlier step samples it
    CHECK_EQ(rows, 1);
    plan.tokens.push_back(0);
  } else if (rows == 1) {
    plan.tokens.push_back(tokens[static_cast<size_t>(lane.planned)]);
  } else {
    plan.tokens.insert(plan.tokens.end(), tokens.begin() + lane.planned,
                       tokens.begin() + lane.planned + rows);
  }
  // After a failed step the sequence is longer than what counts of it.
  lane.sequence->grow(std::max(lane.planned + rows, lane.sequence->length()), lane.blocks);
  for (int g = 0; g < lane.sequence->groups(); ++g) {
    KvView& view = plan.add_view();
    if (document != nullptr) {
      document->push_segments(g, view);
    }
    view.push(lane.sequence->segment(g));
    view.segments[view.count - 1].uniform_length = lane.planned + rows;
  }
  lane.planned += rows;
  lane.last_step = plan.step;
  plan.batch_rows += rows;
  return work;
}

// Null if it ended, or was never forked.
Choice* Scheduler::find(ChoiceKey key) const {
  const auto request = requests_.find(key.request);
  if (request == requests_.end()) {
    return nullptr;
  }
  const auto choice = request->second->choices.find(key.choice);
  return choice == request->second->choices.end() ? nullptr : choice->second.get();
}

Choice* Scheduler::find(const RowsWork& work) {
  Choice* choice = lanes_[work.lane];
  if (choice != nullptr && MUTANT(kStaleResult)) {
    return choice->running() ? choice : nullptr;
  }
  return choice != nullptr && choice->lane.incarnation == work.incarnation ? choice : nullptr;
}

void Scheduler::commit_batch(const StepPlan& plan, const StepResult& result) {
  const auto choice = [&](const RowsWork& work) {
    return work.document_job ? nullptr : lanes_[work.lane];
  };
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    if (i + kFar < plan.rows.size()) {
      prefetch(choice(plan.rows[i + kFar]), choice(plan.rows[i + kNear]));
    }
    commit_rows(plan.rows[i], result);
  }
}

void Scheduler::commit_rows(const RowsWork& work, const StepResult& result) {
  if (work.document_job) {
    commit_job_rows(work);
    return;
  }
  Choice* choice = find(work);
  if (choice == nullptr) {
    return;  // preempted, cancelled or finished meanwhile
  }
  Lane& lane = choice->lane;
  lane.committed += work.rows;
  const bool prompt = lane.committed <= choice->prompt;
  publish(lane, choice->request->spec.space, choice->tokens,
          prompt ? KvOrigin::kPrefill : KvOrigin::kDecode);
  lane.sequence->drop_behind(MUTANT(kWindowDroppedEarly) ? lane.planned : lane.committed);
  // Others may wait for this prefix.
  admission_due_ = admission_due_ || prompt;
  if (work.targets > 0 && !commit_targets(*choice, work, result)) {
    return;
  }
  if (work.slots == 0) {
    if (choice->request->spec.output_max == 0 && lane.committed == choice->prompt) {
      finish(*choice, FinishReason::kLength);
    }
    return;
  }
  --choice->pending;
  if (!choice->request->forked) {
    fork(*choice, work, result);
  }
  accept(*choice, result.tokens[static_cast<size_t>(work.first_slot)], work.first_slot);
}

// False: that was its end.
bool Scheduler::commit_targets(Choice& choice, const RowsWork& work, const StepResult& result) {
  const auto targets =
      std::span(result.targets)
          .subspan(static_cast<size_t>(work.first_target), static_cast<size_t>(work.targets));
  if (std::any_of(targets.begin(), targets.end(),
                  [](const TokenLogprob& target) { return target.token < 0; })) {
    finish(choice, FinishReason::kFailed);
    return false;
  }
  int64_t& scored = choice.request->scored;
  CHECK_EQ(scored, choice.lane.committed - work.rows + work.target_row);
  scored += work.targets;
  Event& event = emit(Event::Kind::kPromptLogprobs, choice.key);
  event.slot = work.first_target;
  event.total = work.targets;
  return true;
}

void Scheduler::publish(Lane& lane, const std::string& space, const std::vector<TokenId>& tokens,
                        KvOrigin origin) {
  const int64_t page = pool_.geometry().page.page_tokens;
  const int64_t pages = lane.committed / page;
  if (pages > lane.cursor.pages) {
    index_.publish(space, tokens, *lane.sequence, pages * page, origin, lane.cursor);
  }
}

// The prompt is done and all choices are sampled from its last row. The others share its whole
// blocks; of a partly filled last one they get a copy, before their first row runs.
void Scheduler::fork(Choice& choice, const RowsWork& work, const StepResult& result) {
  RequestState& request = *choice.request;
  request.forked = true;
  Lane& lane = choice.lane;
  const int64_t page = pool_.geometry().page.page_tokens;
  const int64_t whole = lane.committed / page * page;
  const int64_t each =
      request.spec.choices > 1 ? blocks_for_fork(request.spec) / (request.spec.choices - 1) : 0;
  for (uint32_t k = 1; k < request.spec.choices; ++k) {
    Choice& other = add_choice(request, k);
    other.tokens = choice.tokens;
    other.prompt = choice.prompt;
    Lane& to = other.lane;
    to.blocks = lane.fork_blocks.split(each);
    to.sequence = std::make_unique<Sequence>(lane.sequence->fork(lane.committed, to.blocks));
    to.sequence->reserve_pages(lane.committed + request.spec.output_max);
    to.planned = lane.committed;
    to.committed = lane.committed;
    to.cursor = lane.cursor;
    to.incarnation = ++incarnation_;
    add_running(other);
    if (lane.committed > whole && !MUTANT(kTailNotCopied)) {
      copies_.push_back(
          {lane.sequence->share(lane.committed), other.key, to.incarnation, whole, lane.committed});
    }
    ++stats_.forks;
    const int64_t slot = work.first_slot + k;
    accept(other, result.tokens[static_cast<size_t>(slot)], slot);
  }
}

void Scheduler::accept(Choice& choice, TokenId token, int64_t slot) {
  const RequestSpec& spec = choice.request->spec;
  if (token < 0) {
    finish(choice, FinishReason::kFailed);
    return;
  }
  if (!spec.ignore_end &&
      std::binary_search(config_.end_tokens.begin(), config_.end_tokens.end(), token)) {
    finish(choice, FinishReason::kEnd, token, slot);
    return;
  }
  choice.tokens.push_back(token);
  if (++choice.outputs == 1 && choice.key.choice == 0) {
    histograms_.first_token_us.add(now_ - choice.request->arrived);
  }
  Event& event = emit(Event::Kind::kToken, choice.key);
  event.token = token;
  event.slot = slot;
  if (choice.outputs == spec.output_max) {
    finish(choice, FinishReason::kLength);
  }
}

Choice& Scheduler::add_choice(RequestState& request, uint32_t number) {
  auto choice = std::make_unique<Choice>();
  choice->key = {request.spec.id, number};
  choice->request = &request;
  if (free_lanes_.empty()) {
    free_lanes_.push_back(static_cast<uint32_t>(lanes_.size()));
    lanes_.push_back(nullptr);
  }
  choice->lane_index = free_lanes_.back();
  free_lanes_.pop_back();
  lanes_[choice->lane_index] = choice.get();
  return *(request.choices[number] = std::move(choice));
}

// `token` and `slot`: of the end token, if that is the reason.
void Scheduler::finish(Choice& choice, FinishReason reason, TokenId token, int64_t slot) {
  RequestState& request = *choice.request;
  Event& event = emit(Event::Kind::kFinished, choice.key);
  event.finish = reason;
  event.token = token;
  event.slot = slot;
  // Choices that were to be forked from it end with it.
  for (uint32_t k = 1; k < request.spec.choices && !request.forked; ++k) {
    emit(Event::Kind::kFinished, {choice.key.request, k}).finish = reason;
  }
  if (choice.running()) {
    std::erase(running_, &choice);
    if (MUTANT(kLeakOnCancel) && reason == FinishReason::kCancelled) {
      static std::vector<Sequence> leaked;
      leaked.push_back(std::move(*choice.lane.sequence));
      choice.lane.sequence.reset();
    }
    fence(choice.lane, request.spec.document);
  } else {
    std::erase(waiting_, &choice);
  }
  admission_due_ = admission_due_ || !MUTANT(kLostWakeUp);
  lanes_[choice.lane_index] = nullptr;
  free_lanes_.push_back(choice.lane_index);
  request.choices.erase(choice.key.choice);
  if (!request.choices.empty()) {
    return;
  }
  if (reason == FinishReason::kCancelled) {
    ++stats_.requests_cancelled;
  } else {
    ++stats_.requests_finished;
  }
  close_tenant(request.spec.tenant);
  requests_.erase(request.spec.id);
}

}  // namespace pagezip
