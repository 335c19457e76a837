// The serving engine: any number of requests and document jobs at once, on one model.
//
// One thread owns model state, scheduler and paging: either the engine's own (start()) or the
// host's, which then calls step(). Callers hand in commands through one bounded queue and read each
// request's output from its own stream (engine/output_stream.h). Nothing that a caller does can
// stop another's request: refusals and failures go to the stream of the request they belong to.
//
// Thread rule: submit, cancel, documents and stop from any thread; step and run from one.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "engine/document_task.h"
#include "engine/model_device.h"
#include "engine/output_stream.h"
#include "engine/tokenizer.h"
#include "paging/prefix_index.h"
#include "scheduler/scheduler.h"

namespace pagezip {

struct EngineOptions {
  KvType kv_type = KvType::kF16;
  int page_tokens = 16;
  int64_t pool_blocks = 0;
  int64_t chunk_tokens = 2048;         // of a scoring chunk
  std::optional<int64_t> context_max;  // positions; the model's own limit if not set
  size_t inbox_max = 1024;             // commands that wait for the next step
  SchedulerConfig scheduler;           // score_layers and end_tokens are the model's
  /// Nothing: measured at the start.
  std::optional<CostCoefficients> cost;
};

/// Text to go on from, as tokens, maybe behind a document.
struct GenerateRequest {
  std::string tenant;    // of fairness; its requests share cached prefixes with each other only
  int priority = 0;      // higher is served earlier
  std::string document;  // id, or empty
  /// Which version of the document: the one kept nearest to this; 1 is every pair. Nothing: the
  /// smallest that there is.
  std::optional<double> keep_ratio;
  std::vector<TokenId> prompt;
  int64_t output_max = 128;
  uint32_t choices = 1;  // choice k is sampled with seed + k
  SamplingParams sampling;
  std::vector<std::string> stops;
  int top_logprobs = -1;  // negative: no log-probabilities at all
  bool ignore_end = false;
  std::function<void()> wake;  // see OutputStream; may be empty
};

/// A document to be made.
struct DocumentRequest {
  std::string tenant;
  int priority = 0;
  std::string id;  // new; public
  std::vector<TokenId> prefix;
  std::vector<TokenId> context;
  RepeatPrompts prompts;
  std::vector<VersionSpec> versions;  // empty: only every pair
  bool keep_full = false;             // keep the version with every pair beside the others
};

class Engine {
 public:
  /// Borrows everything. Measures the machine for about as long as a short prompt takes.
  Engine(const Model& model, const Tokenizer& tokenizer, const Kernels& kernels,
         ActivationType activations, ThreadPool& threads, const EngineOptions& options,
         const Clock& clock);
  /// Ends what is left: its streams get kCancelled.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Throws Error(kUsage) for a request that no engine could serve: an empty prompt, ids outside
  /// the vocabulary, sampling parameters out of range. Null if the inbox is full.
  std::shared_ptr<OutputStream> submit(GenerateRequest request);
  /// Likewise, for a document without tokens and ratios outside (0, 1].
  std::shared_ptr<DocumentTask> create_document(DocumentRequest request);
  /// Requests and tasks by their id. What has ended already is left alone.
  void cancel(WorkId id);
  /// New requests don't find it any more; its pages go with its last reader.
  void drop_document(const std::string& id);

  int64_t context_max() const { return context_max_; }
  Stats stats();  // of the last step that ended

  /// One step on the calling thread. False if there was nothing to do.
  bool step();
  /// step() on a thread of the engine's own, until stop().
  void start();
  void stop();

  /// For tests and tools that drive the engine themselves; only between steps.
  Scheduler& scheduler() { return scheduler_; }
  BlockPool& pool() { return pool_; }
  PrefixIndex& index() { return index_; }

 private:
  struct LiveChoice;
  struct LiveRequest;
  struct LiveDocument;
  using Command = std::function<void()>;

  bool post(Command command);
  void run_commands();
  void begin(GenerateRequest request, std::shared_ptr<OutputStream> stream);
  void begin(DocumentRequest request, const std::shared_ptr<DocumentTask>& task);
  void take_events(const StepResult& result);
  void on_token(const Event& event, const StepResult& result);
  void on_finished(const Event& event);
  void on_job(const Event& event);
  std::shared_ptr<const Document> find_version(LiveDocument& document,
                                               std::optional<double> keep_ratio, double& kept);
  int64_t reclaim(int64_t blocks);
  std::string space(const std::string& tenant) const;

  const Model& model_;
  const Tokenizer& tokenizer_;
  const Clock& clock_;
  EngineOptions options_;
  int64_t context_max_;
  Transformer transformer_;
  BlockPool pool_;  // outlives everything that holds blocks
  std::map<std::string, std::unique_ptr<LiveDocument>> documents_;
  PrefixIndex index_;
  ModelDevice device_;
  Scheduler scheduler_;
  StepResult result_;
  std::map<WorkId, std::unique_ptr<LiveRequest>> requests_;
  std::map<WorkId, std::pair<std::string, std::shared_ptr<DocumentTask>>> tasks_;

  std::atomic<WorkId> next_id_{1};
  std::mutex mutex_;
  std::condition_variable posted_;
  std::deque<Command> inbox_;  // guarded by mutex_
  bool stopping_ = false;      // likewise
  Stats stats_;                // likewise
  std::thread thread_;
};

}  // namespace pagezip
