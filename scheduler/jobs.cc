// Document jobs: prefill, score, select, compact, in slices that fit between other work.
#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/mutant.h"
#include "scheduler/scheduler.h"

namespace pagezip {

const char* name_of(JobStage stage) {
  switch (stage) {
    case JobStage::kQueued:
      return "queued";
    case JobStage::kPrefill:
      return "prefill";
    case JobStage::kScore:
      return "score";
    case JobStage::kSelect:
      return "select";
    case JobStage::kCompact:
      return "compact";
  }
  return "";
}

namespace {

constexpr int64_t kTileRows = 256;      // of a score tile while nothing decodes
constexpr int64_t kTileRowsLeast = 16;  // and at least

// A version that was read from a file has the lists that the file says.
bool is_what_came_of(const Document& version, const KeptSets& kept) {
  for (int layer = 0; layer < kept.layers; ++layer) {
    for (int head = 0; head < kept.heads; ++head) {
      if (version.retained_own(layer, head) !=
          static_cast<int64_t>(kept.head(layer, head).size())) {
        return false;
      }
    }
  }
  return true;
}

}  // namespace

// Null if the job ended or was sent back since its work was planned.
Job* Scheduler::find_job(WorkId id, uint64_t incarnation) const {
  const auto job = jobs_.find(id);
  return job != jobs_.end() && job->second->lane.incarnation == incarnation ? job->second.get()
                                                                            : nullptr;
}

// There is one score slot. A job that is in the middle of a chunk has it, else the oldest.
const Job* Scheduler::score_slot_owner() const {
  const Job* owner = nullptr;
  for (const Job* job : running_jobs_) {
    if (job->stage != JobStage::kScore) {
      continue;
    }
    if (job->layer > 0 || job->row > 0) {
      return job;
    }
    owner = owner == nullptr ? job : owner;
  }
  return owner;
}

// Oldest first; a younger job gets what the older ones can't use now.
void Scheduler::plan_jobs(StepPlan& plan, double budget_us, double owed_us) {
  // A slice that no single step has room for runs when enough of them owe it.
  double left = std::max(budget_us, jobs_credit_us_);
  bool must = plan.rows.empty();
  double all_used = 0;
  const Job* scoring = score_slot_owner();
  // By index: a job's rows may displace younger jobs, which end the list.
  for (size_t i = 0; i < running_jobs_.size(); ++i) {
    Job& job = *running_jobs_[i];
    double used = 0;
    switch (job.stage) {
      case JobStage::kPrefill:
        used = plan_job_prompt(plan, job, left, must);
        break;
      case JobStage::kScore:
        used = &job == scoring ? plan_tiles(plan, job, left, must) : 0;
        break;
      case JobStage::kSelect:
      case JobStage::kCompact:
        used = plan_compaction(plan, job, left, must);
        break;
      case JobStage::kQueued:
        break;
    }
    job.tenant->served_us += used;
    left -= used;
    all_used += used;
    must = must && used == 0;
  }
  jobs_credit_us_ = all_used > 0 || running_jobs_.empty() ? 0 : jobs_credit_us_ + owed_us;
}

double Scheduler::plan_job_prompt(StepPlan& plan, Job& job, double budget_us, bool must) {
  Lane& lane = job.lane;
  const auto total = static_cast<int64_t>(job.tokens.size());
  const int64_t limit = std::min(total - lane.planned, config_.rows_max - plan.batch_rows);
  const int64_t keys = job.parent_keys + lane.planned;
  int64_t rows = cost_.rows_within(plan.batch_rows, limit, keys, false, budget_us);
  if (must) {
    rows = std::max(rows, std::min(limit, kTileRowsLeast));
  }
  if (rows <= 0 || !ensure(lane, lane.planned + rows, {job.spec.id, 0})) {
    return 0;
  }
  const double cost =
      cost_.more_rows_us(plan.batch_rows, rows, rows * keys + rows * (rows - 1) / 2, 0);
  plan.decode_only = false;
  plan.document_rows_us += cost;
  RowsWork& work = plan_rows(plan, lane, job.tokens, job.spec.parent.get(), job.parent_keys, rows);
  work.key = {job.spec.id, 0};
  work.document_job = true;
  stats_.rows_document += rows;
  return cost;
}

void Scheduler::commit_job_rows(const RowsWork& work) {
  Job* found = find_job(work.key.request, work.incarnation);
  if (found == nullptr) {
    return;
  }
  Job& job = *found;
  Lane& lane = job.lane;
  lane.committed += work.rows;
  publish(lane, job.spec.space, job.tokens, KvOrigin::kPrefill);
  lane.sequence->drop_behind(lane.committed);
  admission_due_ = true;
  Event& event = emit(Event::Kind::kProgress, work.key);
  event.stage = JobStage::kPrefill;
  event.done = lane.committed;
  event.total = static_cast<int64_t>(job.tokens.size());
  if (event.done == event.total) {
    prefilled(job);
  }
}

// Every pair is there: the full version exists. The sequence has done its work.
void Scheduler::prefilled(Job& job) {
  Lane& lane = job.lane;
  lane.sequence->drop_behind(lane.committed);
  job.full =
      Document::full(*lane.sequence, static_cast<int64_t>(job.spec.prefix.size()), job.spec.parent);
  lane.sequence.reset();
  emit(Event::Kind::kFullReady, {job.spec.id, 0}).document = job.full;
  if (job.final_scores == nullptr) {
    job.final_scores = job.spec.scores;
  }
  if (job.final_scores != nullptr || job.spec.versions.empty() || job.spec.chunks.empty()) {
    next_version(job);
    return;
  }
  job.stage = JobStage::kScore;
  if (job.scores == nullptr) {
    job.scores = std::make_shared<ScoreSet>();
    job.scores->layers = job.full->global_layers();
    job.scores->heads = pool_.geometry().kv_heads;
    job.scores->tokens = static_cast<int64_t>(job.spec.context.size());
    job.scores->scores.assign(static_cast<size_t>(job.scores->pairs()),
                              -std::numeric_limits<float>::infinity());
  }
}

double Scheduler::plan_tiles(StepPlan& plan, Job& job, double budget_us, bool must) {
  double used = 0;
  while (job.chunk < job.spec.chunks.size()) {
    const ScoreChunk& chunk = job.spec.chunks[job.chunk];
    const auto total = static_cast<int64_t>(chunk.tokens.size());
    const int64_t keys = job.full->logical_length() + job.row;
    int64_t rows = std::min({kTileRows, config_.rows_max, total - job.row});
    const auto cost = [&] { return cost_.tile_us(rows, keys, chunk.end - chunk.begin); };
    while (rows > kTileRowsLeast && cost() > budget_us - used) {
      rows = std::max(rows / 2, kTileRowsLeast);
    }
    if (cost() > budget_us - used && !(must && used == 0)) {
      break;
    }
    used += cost();
    plan.tiles.push_back({job.spec.id, job.lane.incarnation, job.full.get(), &chunk, job.layer,
                          job.row, rows, job.scores.get()});
    job.lane.last_step = plan.step;
    job.row += rows;
    if (job.row == total) {
      job.row = 0;
      stats_.rows_score += job.layer == 0 ? total : 0;
      if (++job.layer == config_.score_layers) {
        job.layer = 0;
        ++job.chunk;
      }
    }
  }
  plan.tiles_us += used;
  return used;
}

void Scheduler::commit_tile(const ScoreTile& tile) {
  Job* found = find_job(tile.job, tile.incarnation);
  if (found == nullptr) {
    return;
  }
  Job& job = *found;
  const auto total = static_cast<int64_t>(tile.chunk->tokens.size());
  if (tile.first_row + tile.rows < total) {
    return;
  }
  Event& event = emit(Event::Kind::kProgress, {tile.job, 0});
  event.stage = JobStage::kScore;
  event.total = job.scores->tokens;
  event.done = tile.chunk->begin +
               (tile.chunk->end - tile.chunk->begin) * (tile.layer + 1) / config_.score_layers;
  if (tile.layer + 1 < config_.score_layers) {
    return;
  }
  if (++job.chunks_done == job.spec.chunks.size()) {
    job.final_scores = std::move(job.scores);
    emit(Event::Kind::kScored, {tile.job, 0}).scores = job.final_scores;
    next_version(job);
  }
}

void Scheduler::next_version(Job& job) {
  if (job.version == job.spec.versions.size() || job.final_scores == nullptr) {
    end_job(job, "");
    return;
  }
  job.stage = JobStage::kSelect;
  job.selecting = false;
  job.builder.reset();
  job.layers_planned = 0;
  job.layers_done = 0;
}

double Scheduler::plan_compaction(StepPlan& plan, Job& job, double budget_us, bool must) {
  double used = 0;
  const size_t planned = plan.selects.size() + plan.compacts.size();
  if (job.stage == JobStage::kSelect) {
    const bool cut = job.spec.source_cut.has_value();
    const double cost = cost_.select_us(job.final_scores->pairs()) * (cut ? 2 : 1);
    if (job.selecting || (cost > budget_us && !must)) {
      return 0;
    }
    if (cut) {
      plan.selects.push_back(
          {job.spec.id, job.lane.incarnation, true, job.final_scores.get(), *job.spec.source_cut});
    }
    plan.selects.push_back({job.spec.id, job.lane.incarnation, false, job.final_scores.get(),
                            job.spec.versions[job.version]});
    job.selecting = true;
    used = cost;
  } else {
    const double pairs = static_cast<double>(job.full->logical_length()) *
                         pool_.geometry().kv_heads * job.spec.versions[job.version].keep_ratio;
    const double cost = cost_.compact_us(static_cast<int64_t>(pairs));
    while (job.layers_planned < job.full->global_layers() &&
           (used + cost <= budget_us || (must && used == 0))) {
      plan.compacts.push_back(
          {job.spec.id, job.lane.incarnation, &*job.builder, job.layers_planned++});
      used += cost;
    }
  }
  // Not by what was used: copying a part of a pair costs nothing.
  if (plan.selects.size() + plan.compacts.size() > planned) {
    job.lane.last_step = plan.step;
  }
  plan.compacts_us += used;
  return used;
}

void Scheduler::commit_select(const SelectWork& work, Selection selection) {
  Job* found = find_job(work.job, work.incarnation);
  if (found == nullptr) {
    return;
  }
  Job& job = *found;
  if (const auto* bad = std::get_if<BadScore>(&selection)) {
    end_job(job, "scoring failed: " + bad->message());
    return;
  }
  if (work.of_source) {
    job.source_kept = std::get<KeptSets>(std::move(selection));
    return;
  }
  job.selecting = false;
  if (job.full->compressed() && !is_what_came_of(*job.full, job.source_kept)) {
    end_job(job, "the pairs of the version to cut from aren't those that its scores would keep");
    return;
  }
  DocumentBuilder builder =
      job.full->compressed() ? DocumentBuilder(job.full, std::exchange(job.source_kept, {}),
                                               std::get<KeptSets>(std::move(selection)))
                             : DocumentBuilder(job.full, std::get<KeptSets>(std::move(selection)));
  const int64_t missing = builder.blocks_needed() - job.lane.blocks.blocks();
  const ChoiceKey key{job.spec.id, 0};
  if (missing > 0) {
    if (!make_room(missing, &key)) {
      return;  // selects again when there is room: that is cheap
    }
    job.lane.blocks.merge(reserve(missing));
  }
  builder.take_blocks(job.lane.blocks);
  job.builder.emplace(std::move(builder));
  job.stage = JobStage::kCompact;
}

void Scheduler::commit_compact(const CompactWork& work) {
  Job* found = find_job(work.job, work.incarnation);
  if (found == nullptr) {
    return;
  }
  Job& job = *found;
  Event& event = emit(Event::Kind::kProgress, {work.job, 0});
  event.stage = JobStage::kCompact;
  event.done = ++job.layers_done;
  event.total = job.full->global_layers();
  if (event.done < event.total - (MUTANT(kPublishBeforeCopy) ? 1 : 0)) {
    return;
  }
  Event& ready = emit(Event::Kind::kVersionReady, {work.job, 0});
  ready.version = job.version++;
  CHECK(job.builder.has_value());
  ready.document = job.builder->finish();
  ++stats_.versions;
  log_.add(step_, now_, "publish", work.job, static_cast<int64_t>(ready.version),
           ready.document->blocks_held());
  next_version(job);
}

// Destroys the job, or leaves that to a fence.
void Scheduler::end_job(Job& job, const std::string& error) {
  const WorkId id = job.spec.id;
  Event& event = emit(error.empty() ? Event::Kind::kJobDone : Event::Kind::kJobFailed, {id, 0});
  event.error = error;
  stats_.jobs_done += error.empty() ? 1 : 0;
  log_.add(step_, now_, "end job", id, error.empty() ? 0 : 1);
  std::erase(running_jobs_, &job);
  std::erase(waiting_jobs_, &job);
  close_tenant(job.spec.tenant);
  const auto found = jobs_.find(id);
  std::unique_ptr<Job> owned = std::move(found->second);
  jobs_.erase(found);
  admission_due_ = true;
  owned->lane.blocks = BlockReservation();
  if (owned->lane.last_step > committed_step_) {
    Fence fence;
    fence.step = owned->lane.last_step;
    fence.job = std::move(owned);
    fences_.push_back(std::move(fence));
  }
}

}  // namespace pagezip
