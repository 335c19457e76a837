// Who may enter the pool, and who leaves it when memory is short.
#include <algorithm>

#include "base/check.h"
#include "base/mutant.h"
#include "scheduler/scheduler.h"

namespace pagezip {
namespace {

int64_t common_prefix(const std::vector<TokenId>& a, const std::vector<TokenId>& b) {
  const auto size = static_cast<int64_t>(std::min(a.size(), b.size()));
  return std::mismatch(a.begin(), a.begin() + size, b.begin()).first - a.begin();
}

// Something that waits, for one ordering of requests and jobs.
struct Candidate {
  Rank rank;
  Choice* choice;
  Job* job;
  TimeUs waiting_since;
};

}  // namespace

Rank Scheduler::rank(const Choice& choice) const {
  const RequestState& request = *choice.request;
  const int64_t own = urgency(request.spec.priority, now_ - request.arrived, config_.ageing_us);
  return {std::max(own, choice.inherited), request.tenant->served_us, choice.key.request,
          choice.key.choice};
}

Rank Scheduler::rank(const Job& job) const {
  return {urgency(job.spec.priority, now_ - job.arrived, config_.ageing_us), job.tenant->served_us,
          job.spec.id, 0};
}

void Scheduler::admit() {
  if (!admission_due_ || (waiting_.empty() && waiting_jobs_.empty())) {
    return;
  }
  admission_due_ = false;
  for (Choice* choice : running_) {
    choice->inherited = INT64_MIN;
  }
  std::vector<Candidate> candidates;
  candidates.reserve(waiting_.size() + waiting_jobs_.size());
  for (Choice* choice : waiting_) {
    candidates.push_back({rank(*choice), choice, nullptr, choice->waiting_since});
  }
  for (Job* job : waiting_jobs_) {
    candidates.push_back({rank(*job), nullptr, job, job->arrived});
  }
  std::sort(candidates.begin(), candidates.end(),
            [](const Candidate& a, const Candidate& b) { return a.rank < b.rank; });
  bool choices_blocked = false;
  bool jobs_blocked = false;
  for (const Candidate& next : candidates) {
    bool& blocked = next.choice != nullptr ? choices_blocked : jobs_blocked;
    if (blocked || (next.choice != nullptr && waits_for_leader(*next.choice))) {
      continue;
    }
    if (next.choice != nullptr ? admit_choice(*next.choice) : admit_job(*next.job)) {
      continue;
    }
    // Nobody of its kind overtakes it, and after a while nobody at all. But where nothing runs,
    // only those that wait can free memory: by reading the documents that they keep, to the end.
    if (running_.empty() && running_jobs_.empty() && fences_.empty()) {
      continue;
    }
    blocked = true;
    if (now_ - next.waiting_since > config_.patience_us) {
      break;
    }
  }
  std::erase_if(waiting_, [](const Choice* choice) { return choice->running(); });
  std::erase_if(waiting_jobs_, [](const Job* job) { return job->stage != JobStage::kQueued; });
}

// How many of its tokens may come from the prefix cache. Never the last one; and of a prompt whose
// log-probabilities are asked for only what has given them before it was preempted.
int64_t Scheduler::cacheable(const Choice& choice) {
  const RequestState& request = *choice.request;
  const int64_t last = ssize(choice.tokens) - 1;
  return request.scores() ? std::min(last, request.scored) : last;
}

// A request whose prefix another one is computing right now waits for it and holds no blocks. That
// is asked again at every admission, so when the other one ends early, whoever is first in order
// takes its place.
bool Scheduler::waits_for_leader(Choice& choice) {
  const auto leads = [&](const Choice& other, int64_t length) {
    return other.running() && other.lane.committed < std::min(length, other.prompt);
  };
  const int64_t own_urgency = rank(choice).urgency;
  if (choice.leader.has_value()) {
    Choice* other = find(*choice.leader);
    if (other != nullptr && leads(*other, choice.leader_length)) {
      other->inherited = std::max(other->inherited, own_urgency);
      return true;
    }
    choice.leader.reset();
  }
  const std::string& space = choice.request->spec.space;
  const int64_t page = pool_.geometry().page.page_tokens;
  const int64_t most = cacheable(choice);
  const bool scores = choice.request->scores();
  int64_t cached = -1;
  for (Choice* other : running_) {
    if (other->lane.committed >= other->prompt || other->request->spec.space != space) {
      continue;
    }
    const int64_t common =
        std::min(common_prefix(other->tokens, choice.tokens), most) / page * page;
    if (!leads(*other, common)) {
      continue;
    }
    if (cached < 0) {
      cached = index_.match(space, choice.tokens, most, scores);
    }
    if (common > cached) {
      choice.leader = other->key;
      choice.leader_length = common;
      other->inherited = std::max(other->inherited, own_urgency);
      ++stats_.joins;
      log_.add(step_, now_, "join", choice.key.request, static_cast<int64_t>(other->key.request),
               common);
      return true;
    }
  }
  return false;
}

int64_t Scheduler::blocks_for(const Sequence& sequence, int64_t length) const {
  const KvGeometry& geometry = pool_.geometry();
  int64_t blocks = 0;
  for (int g = 0; g < sequence.groups(); ++g) {
    const BlockTable& table = sequence.table(g);
    int64_t needed = table.blocks_needed(length);
    if (table.window() > 0) {
      // A sliding group never holds more than its window and the rows of one step.
      const int64_t most = geometry.pages_for(table.window() + config_.rows_max) + 1;
      needed = std::min(needed, std::max<int64_t>(most - table.blocks_held(), 0));
    }
    blocks += needed;
  }
  return blocks;
}

// Every further choice needs a block for its tail and some for its output, in each group.
int64_t Scheduler::blocks_for_fork(const RequestSpec& spec) const {
  const int64_t output = std::min(spec.output_max, config_.output_min);
  return (spec.choices - 1) * (pool_.geometry().pages_for(output) + 1) *
         static_cast<int64_t>(groups_.size());
}

int64_t Scheduler::blocks_for_version(const DocumentSpec& spec, const VersionSpec& version) const {
  const auto tokens = static_cast<int64_t>(spec.context.size());
  const auto kept = static_cast<int64_t>(static_cast<double>(tokens) * version.keep_ratio) + 1;
  // Every list may begin with the rest of the prefix and end with a partial page.
  return pool_.geometry().pages_for(std::min(std::max(kept, version.min_per_head), tokens)) + 3;
}

// REQUIRES: so many blocks are available.
BlockReservation Scheduler::reserve(int64_t blocks) {
  std::optional<BlockReservation> reservation = pool_.reserve(blocks);
  CHECK(reservation.has_value());
  return std::move(*reservation);
}

// A lane comes into the pool with what the prefix cache had. REQUIRES: so many blocks are
// available.
void Scheduler::enter(Lane& lane, Sequence sequence, const PrefixIndex::Hit& hit, int64_t blocks) {
  lane.sequence = std::make_unique<Sequence>(std::move(sequence));
  lane.blocks = reserve(blocks);
  lane.cursor = hit.cursor;
  lane.planned = hit.length;
  lane.committed = hit.length;
  lane.incarnation = ++incarnation_;
  lane.last_step = 0;
}

void Scheduler::add_running(Choice& choice) {
  const auto by_age = [](const Choice* a, const Choice* b) { return a->key < b->key; };
  running_.insert(std::upper_bound(running_.begin(), running_.end(), &choice, by_age), &choice);
}

bool Scheduler::admit_choice(Choice& choice) {
  const RequestSpec& spec = choice.request->spec;
  const auto seats = [](const Choice& c) {
    return c.request->forked ? 1 : int64_t{c.request->spec.choices};
  };
  int64_t taken = seats(choice);
  for (const Choice* other : running_) {
    taken += seats(*other);
  }
  if (taken > config_.running_max) {
    return false;
  }
  const auto length = static_cast<int64_t>(choice.tokens.size());
  int64_t first = spec.document == nullptr ? 0 : spec.document->logical_length();
  if (MUTANT(kWrongPosition)) {
    first = choice.request->document_keys;
  }
  // Looked up and pinned at once, before anything is evicted for the rest. What decode wrote may
  // differ in its last bits, and log-probabilities must not.
  const bool scores = choice.request->scores();
  PrefixIndex::Hit hit = index_.acquire(spec.space, choice.tokens, cacheable(choice), scores);
  if (MUTANT(kPinAfterLookUp)) {
    const int64_t seen = hit.length;
    hit = {};
    make_room(pool_.geometry().pages_for(length), nullptr);
    hit = index_.acquire(spec.space, choice.tokens, cacheable(choice), scores);
    hit.length = seen;
  }
  Sequence sequence(pool_, groups_, first);
  const int64_t most = length + spec.output_max - choice.outputs;
  if (hit.length > 0) {
    sequence.adopt(std::move(hit.runs));
  }
  const int64_t wanted = std::min(most, length + config_.output_min);
  const int64_t blocks = blocks_for(sequence, wanted);
  const int64_t fork_blocks = choice.request->forked ? 0 : blocks_for_fork(spec);
  if (!make_room(blocks + fork_blocks, nullptr)) {
    return false;
  }
  sequence.reserve_pages(most);
  enter(choice.lane, std::move(sequence), hit, blocks);
  choice.lane.fork_blocks = reserve(fork_blocks);
  choice.prompt = length;
  choice.pending = 0;
  choice.leader.reset();
  choice.inherited = INT64_MIN;
  stats_.tokens_admitted += length;
  stats_.tokens_cached += hit.length;
  add_running(choice);
  log_.add(step_, now_, "admit", choice.key.request, length, hit.length);
  if (!choice.request->started) {
    choice.request->started = true;
    histograms_.queue_us.add(now_ - choice.request->arrived);
    Event& event = emit(Event::Kind::kStarted, choice.key);
    event.done = hit.length;
    event.total = length;
  }
  return true;
}

bool Scheduler::admit_job(Job& job) {
  const bool is_cut = job.spec.source != nullptr;  // nothing to prefill
  const auto length = is_cut ? 0 : static_cast<int64_t>(job.tokens.size());
  PrefixIndex::Hit hit = index_.acquire(job.spec.space, job.tokens, length, true);
  Sequence sequence(pool_, groups_,
                    job.spec.parent == nullptr ? 0 : job.spec.parent->logical_length());
  if (hit.length > 0) {
    sequence.adopt(std::move(hit.runs));
  }
  int64_t blocks = blocks_for(sequence, length);
  for (size_t v = job.version; v < job.spec.versions.size(); ++v) {
    blocks += blocks_for_version(job.spec, job.spec.versions[v]);
  }
  int64_t held = blocks;
  for (const Job* other : running_jobs_) {
    held += other->lane.blocks.blocks() + other->lane.blocks_held() +
            (other->full == nullptr ? 0 : other->full->blocks_held());
  }
  const double most = config_.jobs_share * static_cast<double>(pool_.blocks_total());
  if (!running_jobs_.empty() && static_cast<double>(held) > most) {
    return false;
  }
  if (!make_room(blocks, nullptr)) {
    return false;
  }
  sequence.reserve_pages(length);
  enter(job.lane, std::move(sequence), hit, blocks);
  job.stage = JobStage::kPrefill;
  job.chunk = job.chunks_done;
  job.layer = 0;
  job.row = 0;
  const auto by_age = [](const Job* a, const Job* b) { return a->spec.id < b->spec.id; };
  running_jobs_.insert(std::upper_bound(running_jobs_.begin(), running_jobs_.end(), &job, by_age),
                       &job);
  log_.add(step_, now_, "admit job", job.spec.id, length, hit.length);
  if (is_cut) {
    job.lane.sequence.reset();
    job.full = job.spec.source;
    job.final_scores = job.spec.scores;
    next_version(job);
  } else if (job.lane.committed == length) {
    prefilled(job);
  }
  return true;
}

// Evicts, and for a running requester also displaces younger work, until so many blocks are
// available. False: not now.
bool Scheduler::make_room(int64_t blocks, const ChoiceKey* requester) {
  while (pool_.blocks_available() < blocks) {
    const int64_t missing = blocks - pool_.blocks_available();
    if (index_.evict(missing) > 0 || reclaim_(missing, requester != nullptr) > 0) {
      continue;
    }
    // What is fenced comes free by itself: displacing more would only lose work.
    if ((!fences_.empty() && !MUTANT(kDeferredFreeThrash)) || requester == nullptr ||
        !displace_younger(*requester)) {
      return false;
    }
  }
  return true;
}

bool Scheduler::ensure(Lane& lane, int64_t length, const ChoiceKey& requester) {
  if (length <= lane.sequence->room()) {
    return true;
  }
  const int64_t missing = lane.sequence->blocks_needed(length) - lane.blocks.blocks();
  if (missing > 0) {
    if (!make_room(missing, &requester)) {
      return false;
    }
    lane.blocks.merge(reserve(missing));
  }
  return true;
}

bool Scheduler::displace_younger(const ChoiceKey& requester) {
  Choice* choice =
      running_.empty() || running_.back()->key <= requester ? nullptr : running_.back();
  Job* job = nullptr;
  for (Job* other : running_jobs_) {
    // A compaction is nearly done, and gives back more than it takes.
    if (ChoiceKey{other->spec.id, 0} > requester && other->stage != JobStage::kCompact) {
      job = other;
    }
  }
  if (job != nullptr && (choice == nullptr || job->spec.id > choice->key.request)) {
    send_back(*job);
    return true;
  }
  if (choice != nullptr) {
    preempt(*choice);
    return true;
  }
  return false;
}

void Scheduler::preempt(Choice& choice) {
  ++stats_.preemptions;
  stats_.tokens_lost +=
      choice.lane.committed - choice.lane.cursor.pages * pool_.geometry().page.page_tokens;
  log_.add(step_, now_, "preempt", choice.key.request, choice.lane.committed, choice.outputs);
  std::erase(running_, &choice);
  fence(choice.lane, choice.request->spec.document);
  choice.pending = 0;
  choice.waiting_since = now_;
  waiting_.push_back(&choice);
  admission_due_ = true;
}

void Scheduler::send_back(Job& job) {
  ++stats_.jobs_sent_back;
  log_.add(step_, now_, "send back", job.spec.id, job.lane.committed,
           static_cast<int64_t>(job.chunks_done));
  std::erase(running_jobs_, &job);
  fence(job.lane, std::move(job.full));
  job.full = nullptr;
  job.stage = JobStage::kQueued;
  job.selecting = false;
  waiting_jobs_.push_back(&job);
  admission_due_ = true;
}

void Scheduler::fence(Lane& lane, std::shared_ptr<const Document> document) {
  lane.blocks = BlockReservation();
  if (!MUTANT(kReservationKept)) {
    lane.fork_blocks = BlockReservation();
  }
  lane.incarnation = 0;
  if (lane.last_step > committed_step_) {
    fences_.push_back({lane.last_step, std::move(lane.sequence), std::move(document), nullptr});
  }
  lane.sequence.reset();
}

void Scheduler::release_fences() {
  const size_t before = fences_.size();
  std::erase_if(fences_, [&](const Fence& fence) { return fence.step <= committed_step_; });
  admission_due_ = admission_due_ || fences_.size() < before;
}

}  // namespace pagezip
