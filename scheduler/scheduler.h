// Decides what each step computes: continuous batching of requests, and of documents beside them.
//
//   submit, cancel, stop ...     at any time
//   plan = schedule(now)         admits, preempts, and fills a step up to its target time
//   commit(result, now)          takes in what came out: tokens, pages to share, documents
//
// A step is filled by predicted cost in this order: decode rows (all of them), prompts, documents
// (prompt, score tiles, selection, compaction). Requests are admitted when their whole prompt and
// some output fit the pool; documents when their peak does. When memory runs out, what nobody uses
// is evicted, then younger work yields to older: a document job is sent back with its scores kept,
// a choice is preempted and recomputes only what the prefix cache lost. So the oldest work always
// goes on, and a full pool can't come to a standstill.
//
// With config.depth > 1, later steps are planned before earlier ones are committed: a decode row
// may then take "the token of slot j of step n". Memory of work that ends is fenced until the steps
// that may use it are committed.
//
// No thread, clock, randomness or device of its own. Engine thread only.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "paging/block_pool.h"
#include "paging/block_table.h"
#include "paging/prefix_index.h"
#include "scheduler/cost_model.h"
#include "scheduler/policy.h"
#include "scheduler/request.h"
#include "scheduler/stats.h"
#include "scheduler/step_plan.h"
#include "scheduler/work.h"

namespace pagezip {

struct SchedulerConfig {
  int64_t rows_max = 512;     // of a step's batch
  int64_t running_max = 256;  // choices in the pool at once
  int64_t queue_max = 1024;   // choices and jobs that wait
  /// What a step may take while something decodes: microseconds, or, if 0, this many times what its
  /// decode rows would take alone.
  double step_target_us = 0;
  double step_target_ratio = 2;
  double idle_step_us = 100'000;   // while nothing decodes
  int64_t output_min = 16;         // tokens of output that must fit at admission
  TimeUs ageing_us = 1'000'000;    // of waiting are worth one step of priority
  TimeUs patience_us = 2'000'000;  // of waiting for memory, before nobody may overtake any more
  double jobs_share = 0.75;        // of the pool, for document jobs together
  int64_t document_blocks = 0;     // that documents in use may keep from any one piece of work
  int score_layers = 1;            // layers that scoring runs through: up to the last global one
  std::vector<TokenId> end_tokens;
  int depth = 1;  // steps planned ahead of their commit
};

class Scheduler {
 public:
  /// Frees up to so many blocks of documents that nobody reads, and returns how many. `urgent`: for
  /// work that runs already, not for work that wants to enter.
  using Reclaim = std::function<int64_t(int64_t blocks, bool urgent)>;

  /// Borrows pool and index, which have the same groups.
  Scheduler(const SchedulerConfig& config, const CostModel& cost, BlockPool& pool,
            PrefixIndex& index, std::span<const KvGroup> groups, Reclaim reclaim);
  ~Scheduler();

  /// REQUIRES: a new id; spec as request.h says.
  Admission submit(RequestSpec spec, TimeUs now);
  Admission submit(DocumentSpec spec, TimeUs now);
  /// How much of spec.output_max the pool can hold behind the prompt; 0: not even one token.
  int64_t output_room(const RequestSpec& spec) const;
  /// Ends a request (every choice of it) or a job, in whatever state; false if there is none.
  bool cancel(WorkId id);
  /// Ends one choice whose text is complete.
  void stop(ChoiceKey key);

  /// The next step, or null if there is nothing to compute now. REQUIRES: fewer than config.depth
  /// steps are in flight.
  const StepPlan* schedule(TimeUs now);
  /// REQUIRES: the result of the oldest step in flight.
  void commit(const StepResult& result, TimeUs now);
  /// What happened since the last call. Fills `events` anew, and goes on with its memory.
  void take_events(std::vector<Event>& events);

  int64_t in_flight() const { return static_cast<int64_t>(in_flight_.size()); }
  /// Nothing waits, runs, or is in flight.
  bool idle() const;
  /// The engine's own memory went up or down: waiting work may fit now.
  void memory_changed() { admission_due_ = true; }
  /// Evicts what nobody uses until so many blocks are available. False: not now.
  bool make_room(int64_t blocks) { return make_room(blocks, nullptr); }

  Stats stats() const;
  const Histograms& histograms() const { return histograms_; }
  /// Parts of ended work that steps in flight may still use.
  int64_t fences() const { return static_cast<int64_t>(fences_.size()); }
  const DecisionLog& log() const { return log_; }
  const CostModel& cost() const { return cost_; }
  /// Blocks pinned by choices, jobs and fences, once for each pin; for BlockPool::audit_owners.
  void count_refs(std::span<uint32_t> refs) const;
  int64_t blocks_reserved() const;
  /// A line for every choice and job, for people.
  std::string describe() const;
  /// Recomputes the scheduler's own invariants; "" or the first violation.
  std::string audit() const;

 private:
  // admission.cc: queues and memory
  void admit();
  bool admit_choice(Choice& choice);
  bool admit_job(Job& job);
  void enter(Lane& lane, Sequence sequence, const PrefixIndex::Hit& hit, int64_t blocks);
  void add_running(Choice& choice);
  bool waits_for_leader(Choice& choice);
  static int64_t cacheable(const Choice& choice);
  int64_t blocks_for(const Sequence& sequence, int64_t length) const;
  bool fits(const RequestSpec& spec, int64_t output) const;
  int64_t blocks_for_fork(const RequestSpec& spec) const;
  int64_t blocks_for_version(const DocumentSpec& spec, const VersionSpec& version) const;
  BlockReservation reserve(int64_t blocks);
  bool make_room(int64_t blocks, const ChoiceKey* requester);
  bool ensure(Lane& lane, int64_t length, const ChoiceKey& requester);
  bool displace_younger(const ChoiceKey& requester);
  void preempt(Choice& choice);
  void send_back(Job& job);
  void fence(Lane& lane, std::shared_ptr<const Document> document);
  void release_fences();
  Rank rank(const Choice& choice) const;
  Rank rank(const Job& job) const;

  // rows.cc: batches
  void plan_copies(StepPlan& plan);
  Choice* fork_target(const ForkCopy& copy) const;
  void plan_decode(StepPlan& plan);
  double plan_prompts(StepPlan& plan, double budget_us);
  RowsWork& plan_rows(StepPlan& plan, Lane& lane, const std::vector<TokenId>& tokens,
                      const Document* document, int64_t document_keys, int64_t rows);
  static void plan_targets(StepPlan& plan, RowsWork& work, const Choice& choice);
  bool commit_targets(Choice& choice, const RowsWork& work, const StepResult& result);
  void commit_batch(const StepPlan& plan, const StepResult& result);
  void commit_rows(const RowsWork& work, const StepResult& result);
  void publish(Lane& lane, const std::string& space, const std::vector<TokenId>& tokens,
               KvOrigin origin);
  void fork(Choice& choice, const RowsWork& work, const StepResult& result);
  void accept(Choice& choice, TokenId token, int64_t slot);
  void finish(Choice& choice, FinishReason reason, TokenId token = 0, int64_t slot = 0);
  Choice& add_choice(RequestState& request, uint32_t number);
  Choice* find(const RowsWork& work);
  Choice* find(ChoiceKey key) const;

  // jobs.cc: documents
  void plan_jobs(StepPlan& plan, double budget_us, double owed_us);
  Job* find_job(WorkId id, uint64_t incarnation) const;
  const Job* score_slot_owner() const;
  double plan_job_prompt(StepPlan& plan, Job& job, double budget_us, bool must);
  double plan_tiles(StepPlan& plan, Job& job, double budget_us, bool must);
  double plan_compaction(StepPlan& plan, Job& job, double budget_us, bool must);
  void commit_job_rows(const RowsWork& work);
  void prefilled(Job& job);
  void next_version(Job& job);
  void commit_tile(const ScoreTile& tile);
  void commit_select(const SelectWork& work, Selection selection);
  void commit_compact(const CompactWork& work);
  void end_job(Job& job, const std::string& error);

  // scheduler.cc
  void count_step(const StepPlan& plan, const StepResult& result);
  void rewind();
  Event& emit(Event::Kind kind, ChoiceKey key);
  TenantState& open_tenant(const std::string& name);
  void close_tenant(const std::string& name);
  double occupancy();

  SchedulerConfig config_;
  CostModel cost_;
  BlockPool& pool_;
  PrefixIndex& index_;
  std::vector<KvGroup> groups_;
  Reclaim reclaim_;

  TimeUs now_ = 0;
  uint64_t step_ = 0;  // planned
  uint64_t committed_step_ = 0;
  uint64_t epoch_ = 0;  // failures
  uint64_t incarnation_ = 0;
  std::map<std::string, TenantState> tenants_;
  std::map<WorkId, std::unique_ptr<RequestState>> requests_;
  std::map<WorkId, std::unique_ptr<Job>> jobs_;
  std::vector<Choice*> lanes_;  // by Choice::lane_index; null: free
  std::vector<uint32_t> free_lanes_;
  std::vector<Choice*> running_;    // by age
  std::vector<Choice*> waiting_;    // any order
  std::vector<Job*> running_jobs_;  // by age
  std::vector<Job*> waiting_jobs_;
  std::vector<ForkCopy> copies_;  // not planned yet
  std::deque<Fence> fences_;
  std::vector<StepPlan> plans_;  // [depth], used in turn
  std::deque<StepPlan*> in_flight_;
  std::deque<std::vector<ForkCopy>> copies_in_flight_;
  std::vector<Event> events_;
  bool admission_due_ = false;
  double occupancy_ = 0;
  uint64_t occupancy_step_ = 0;  // when it was counted; 0: never
  double jobs_credit_us_ = 0;    // that steps without room for a slice of a document owe it
  Stats stats_;
  Histograms histograms_;
  DecisionLog log_;
};

}  // namespace pagezip
