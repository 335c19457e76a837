// One seeded life of scheduler, pool and prefix index on a fake device: random requests and
// documents, faults, and an audit after every step.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/prng.h"
#include "paging/block_pool.h"
#include "paging/prefix_index.h"
#include "scheduler/scheduler.h"
#include "tests/sim/fake_device.h"
#include "tests/sim/truth.h"

namespace pagezip::sim {

/// How often the rare paths ran, over all seeds.
using Marks = std::map<std::string, int64_t>;

struct Options {
  ModelShape shape;
  SchedulerConfig scheduler;
  CostCoefficients cost;
  int64_t blocks = 0;
  int64_t request_blocks = 0;  // of the largest request
  int64_t requests = 0;
  int64_t documents = 0;
  int64_t prompt_max = 0;
  int64_t output_max = 0;
  int64_t document_max = 0;
  int tenants = 1;
  double arrive = 0.5;  // chances per tick
  double cancel = 0;
  double stop = 0;
  double fail = 0;
  double jump = 0;
  double drop = 0;   // a document is dropped by its owner
  double burst = 0;  // more requests come at once than can wait

  static Options swarm(Prng& prng);
};

class Simulation {
 public:
  Simulation(const Options& options, uint64_t seed, Marks& marks);
  ~Simulation();

  /// A random life, to its end. Returns the first violation, or "".
  std::string run();

  // A life that somebody else decides on: any of these, as often as wanted, then finish().
  void submit(RequestSpec spec, const DocumentTruth* on);
  /// `behind`: what the document extends, or null.
  void submit(DocumentSpec spec, const DocumentTruth* behind, bool keeps_scores);
  void cancel(WorkId id);
  void stop(ChoiceKey key);
  void fail_next() { device_.fail_next(); }
  bool plan();
  void run_and_commit();
  void audit();
  int64_t in_flight() const { return static_cast<int64_t>(planned_.size()); }
  const std::string& failure() const { return failure_; }
  /// Without faults from here on: all must end. Returns the first violation, or "".
  std::string finish();

  uint64_t trace() const { return trace_; }
  std::string log() const { return scheduler_->log().text() + scheduler_->describe(); }

 private:
  struct Document {
    std::shared_ptr<const pagezip::Document> document;  // null: the owner dropped it
    std::weak_ptr<const pagezip::Document> alive;
    std::unique_ptr<DocumentTruth> truth;
    std::string space;
    WorkId job = 0;
    std::optional<VersionSpec> version;  // nothing: every pair
  };
  struct Progress {
    size_t outputs = 0;
    bool finished = false;
  };

  void fail(const std::string& what);
  void tick(bool faults);
  void arrive();
  void submit_request();
  void submit_document();
  void submit_lower_ratio(const Document& source);
  Document* some_document();
  void add_chunks(DocumentSpec& spec);
  void inject();
  void plan_and_run(bool faults);
  void trace(const StepPlan& plan);
  void take_events();
  void on_prompt_logprobs(const Event& event);
  void on_token(const Event& event);
  void on_finished(const Event& event);
  void on_document(const Event& event, bool compressed);
  int64_t reclaim(int64_t blocks);
  void check_end();
  void check_progress(const StepPlan& plan);
  std::vector<TokenId> random_tokens(int64_t count);

  Options options_;
  Prng prng_;
  Marks& marks_;
  Truth truth_;
  BlockPool pool_;  // outlives everything below
  std::vector<Document> documents_;
  std::unique_ptr<PrefixIndex> index_;
  std::unique_ptr<Scheduler> scheduler_;
  FakeDevice device_;
  std::deque<const StepPlan*> planned_;
  StepResult result_;  // of the step that was committed last
  std::vector<Event> events_;
  std::map<WorkId, std::map<uint32_t, Progress>> open_;  // requests
  std::map<WorkId, bool> jobs_;                          // finished?
  std::map<WorkId, bool> cancelled_;
  std::map<WorkId, size_t> prompts_;  // tokens
  std::map<WorkId, size_t> scored_;  // tokens of the prompt whose log-probabilities came; who asked
  std::multimap<int64_t, ChoiceKey> stops_;  // by the tick in which they come
  std::vector<std::vector<TokenId>> texts_;  // shared beginnings
  WorkId next_id_ = 1;
  TimeUs now_ = 1;
  int64_t arrived_requests_ = 0;
  int64_t arrived_documents_ = 0;
  int64_t ticks_ = 0;
  int64_t idle_ticks_ = 0;
  int64_t steps_without_choices_ = 0;
  uint64_t trace_ = 0;
  std::string failure_;
};

/// Runs one seed. "" or what went wrong, with the decisions that led there.
std::string simulate(uint64_t seed, Marks& marks, uint64_t* trace = nullptr);

}  // namespace pagezip::sim
