// What the simulation compares with the truth, and what must hold after every step.
#include <algorithm>

#include "tests/sim/simulation.h"

namespace pagezip::sim {

// Documents must not keep requests from running, if there is memory for them.
void Simulation::check_progress(const StepPlan& plan) {
  const bool choices = std::any_of(plan.rows.begin(), plan.rows.end(),
                                   [](const RowsWork& work) { return !work.document_job; });
  const bool could = !choices && scheduler_->stats().running > 0 && scheduler_->fences() == 0 &&
                     scheduler_->in_flight() <= 1 &&
                     pool_.blocks_available() + index_->blocks_idle() >=
                         2 * static_cast<int64_t>(options_.shape.groups.size());
  steps_without_choices_ = could ? steps_without_choices_ + 1 : 0;
  if (steps_without_choices_ > 8) {
    fail("requests starve beside documents");
  }
}

// What was decided: equal traces mean equal runs.
void Simulation::trace(const StepPlan& plan) {
  const auto add = [&](int64_t number) { trace_ = mix(trace_, static_cast<uint64_t>(number)); };
  for (const RowsWork& work : plan.rows) {
    add(static_cast<int64_t>(work.key.request * 16 + work.key.choice));
    add(work.first_position * 1000 + work.rows);
  }
  add(static_cast<int64_t>(plan.copies.size()));
  for (const ScoreTile& tile : plan.tiles) {
    add(tile.first_row * 1000 + tile.rows);
  }
  add(static_cast<int64_t>(plan.selects.size() * 1000 + plan.compacts.size()));
  add(pool_.blocks_available());
}

void Simulation::take_events() {
  scheduler_->take_events(events_);
  for (const Event& event : events_) {
    switch (event.kind) {
      case Event::Kind::kStarted:
        marks_["prefix hit"] += event.done > 0 ? 1 : 0;
        break;
      case Event::Kind::kPromptLogprobs:
        on_prompt_logprobs(event);
        break;
      case Event::Kind::kToken:
        on_token(event);
        break;
      case Event::Kind::kFinished:
        on_finished(event);
        break;
      case Event::Kind::kProgress:
        if (event.done > event.total) {
          fail("progress beyond the end");
        }
        break;
      case Event::Kind::kFullReady:
        on_document(event, false);
        break;
      case Event::Kind::kScored:
        if (event.scores->scores != truth_.jobs.at(event.key.request).scores.scores) {
          fail("wrong scores");
        }
        break;
      case Event::Kind::kVersionReady:
        on_document(event, true);
        break;
      case Event::Kind::kJobDone:
        jobs_.at(event.key.request) = true;
        ++marks_["job done"];
        break;
      case Event::Kind::kJobFailed:
        jobs_.at(event.key.request) = true;
        if (!cancelled_.contains(event.key.request)) {
          fail("a job failed: " + event.error);
        }
        break;
    }
  }
  events_.clear();  // and with them, documents
}

// Every token of the prompt once, in order.
void Simulation::on_prompt_logprobs(const Event& event) {
  const auto found = open_.find(event.key.request);
  if (found == open_.end() || !scored_.contains(event.key.request) || event.total <= 0) {
    return fail("log-probabilities that nobody waits for");
  }
  const ChoiceTruth& truth = truth_.choices.at(event.key);
  size_t& scored = scored_.at(event.key.request);
  for (int64_t i = 0; i < event.total; ++i, ++scored) {
    const TokenLogprob& target = result_.targets.at(static_cast<size_t>(event.slot + i));
    if (scored >= prompts_.at(event.key.request) || target.token != truth.tokens[scored] ||
        target.logprob != logprob(truth.pairs[scored - 1], target.token)) {
      return fail("request " + std::to_string(event.key.request) +
                  " got a wrong log-probability of its prompt");
    }
  }
  ++marks_["log-probabilities of a prompt"];
}

void Simulation::on_token(const Event& event) {
  const auto found = open_.find(event.key.request);
  if (found == open_.end() || found->second.at(event.key.choice).finished) {
    return fail("a token of a request that is over");
  }
  const ChoiceTruth& truth = truth_.choices.at(event.key);
  Progress& progress = found->second.at(event.key.choice);
  const auto scored = scored_.find(event.key.request);
  if (scored != scored_.end() && scored->second != prompts_.at(event.key.request)) {
    fail("a token before the log-probabilities of the prompt");
  }
  const size_t at = progress.outputs++;
  const size_t index = prompts_.at(event.key.request) + at;
  if (index >= truth.tokens.size() || truth.tokens[index] != event.token) {
    fail("request " + std::to_string(event.key.request) + " got a wrong token");
  }
}

void Simulation::on_finished(const Event& event) {
  const auto found = open_.find(event.key.request);
  if (found == open_.end()) {
    return fail("a request finished twice");
  }
  const ChoiceTruth& truth = truth_.choices.at(event.key);
  Progress& progress = found->second.at(event.key.choice);
  const size_t outputs = truth.tokens.size() - prompts_.at(event.key.request);
  const bool early =
      event.finish == FinishReason::kCancelled || event.finish == FinishReason::kStopString;
  const auto scored = scored_.find(event.key.request);
  const bool unscored = scored != scored_.end() && scored->second != prompts_.at(event.key.request);
  if (progress.finished || (!early && unscored) ||
      (early && !cancelled_.contains(event.key.request)) ||
      (!early && (progress.outputs != outputs || event.finish != truth.finish))) {
    fail("request " + std::to_string(event.key.request) + " finished wrongly");
  }
  progress.finished = true;
  const auto& choices = found->second;
  if (std::all_of(choices.begin(), choices.end(),
                  [](const auto& c) { return c.second.finished; })) {
    open_.erase(found);
  }
}

void Simulation::on_document(const Event& event, bool compressed) {
  const JobTruth& job = truth_.jobs.at(event.key.request);
  auto truth = std::make_unique<DocumentTruth>(job.full);
  if (compressed) {
    truth->kept = std::get<KeptSets>(select(job.scores, job.spec.versions[event.version]));
  }
  const bool keep = prng_.chance(0.7);
  documents_.push_back(
      {keep ? event.document : nullptr, event.document, std::move(truth),
       "doc" + std::to_string(event.key.request) + "/" +
           std::to_string(compressed ? event.version + 1 : 0),
       event.key.request,
       compressed ? std::optional(job.spec.versions[event.version]) : std::nullopt});
}

void Simulation::audit() {
  std::vector<uint32_t> pins(static_cast<size_t>(pool_.blocks_total()), 0);
  for (const Document& document : documents_) {
    if (const auto alive = document.alive.lock()) {
      alive->count_refs(pins);
    }
  }
  scheduler_->count_refs(pins);
  index_->count_refs(pins);
  fail(pool_.audit_owners(pins, scheduler_->blocks_reserved()));
  fail(scheduler_->audit());
  if (ticks_ % 16 == 0) {
    fail(index_->audit());
  }
}

// Nothing is left of all that was.
void Simulation::check_end() {
  documents_.clear();
  index_->clear();
  if (pool_.blocks_available() != pool_.blocks_total()) {
    fail("the pool isn't as it began");
  }
  const Stats stats = scheduler_->stats();
  const Histograms& histograms = scheduler_->histograms();
  int64_t steps = 0;
  for (const Histogram& histogram : histograms.step_us) {
    steps += histogram.count();
  }
  if (steps != stats.steps - stats.steps_failed || histograms.step_rows.count() != steps) {
    fail("steps are missing in the histograms");
  }
  if (histograms.first_token_us.count() > histograms.queue_us.count() ||
      histograms.queue_us.count() > stats.requests_finished + stats.requests_cancelled) {
    fail("requests are counted twice in the histograms");
  }
  marks_["preempted"] += stats.preemptions;
  marks_["sent back"] += stats.jobs_sent_back;
  marks_["joined"] += stats.joins;
  marks_["forked"] += stats.forks;
}

}  // namespace pagezip::sim
