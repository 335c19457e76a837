// The serving engine: any number of requests and document jobs at once, on one model.
//
// One thread owns model state, scheduler and paging: either the engine's own (start()) or the
// host's, which then calls step(). Callers hand in commands through one bounded queue and read each
// request's output from its own stream (engine/output_stream.h). Nothing that a caller does can
// stop another's request: refusals and failures go to the stream of the request they belong to.
//
// Documents live in a DocumentStore: in the pool, and in a folder where one is given. A request on
// a document that is only on disk waits until it is read back; one whose document doesn't fit
// beside those in use waits for them.
//
// Thread rule: submit, cancel, stats and all about documents from any thread; step from one.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "engine/document_disk.h"
#include "engine/document_task.h"
#include "engine/engine_stats.h"
#include "engine/model_device.h"
#include "engine/output_stream.h"
#include "engine/tokenizer.h"
#include "engine/trace.h"
#include "paging/document_store.h"
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
  SchedulerConfig scheduler;  // score_layers, end_tokens and document_blocks are the engine's
  /// Nothing: measured at the start.
  std::optional<CostCoefficients> cost;
  std::string trace;  // a file for a trace of everything (engine/trace.h); empty: none

  /// Of the pool, that documents in use may take; requests and jobs have the rest.
  double documents_share = 0.5;
  double pinned_share = 0.25;  // of the pool, that pinned documents may take; part of it
  /// Where documents survive the process; empty: they don't. Borrows `files`.
  std::string folder;
  int64_t file_bytes_max = int64_t{16} << 30;
  Files* files = &system_files();
  /// What a document file must have in common with this engine.
  ModelIdentity identity;
  std::string provenance;  // written into files
};

/// Text to go on from, as tokens, maybe behind a document.
struct GenerateRequest {
  std::string tenant;  // of fairness; its requests share cached prefixes with each other only
  std::vector<std::string> groups;  // whose documents it may use
  int priority = 0;                 // higher is served earlier
  std::string document;             // id, or empty
  /// Which version of the document: the one kept nearest to this; 1 is every pair. Nothing: the
  /// smallest that there is, while it is made the full one.
  std::optional<double> keep_ratio;
  std::vector<TokenId> prompt;
  int64_t output_max = 128;  // fewer where the context or the pool end; 0: only the prompt
  uint32_t choices = 1;      // choice k is sampled with seed + k
  SamplingParams sampling;
  std::vector<std::string> stops;
  int top_logprobs = -1;     // negative: no log-probabilities at all
  int prompt_logprobs = -1;  // likewise, of the prompt's tokens, which are then all computed anew
  bool ignore_end = false;
  std::function<void()> wake;  // see OutputStream; may be empty
};

/// A document to be made.
struct DocumentRequest {
  std::string tenant;  // whose work it is; also of the scope, if that has no name
  int priority = 0;
  /// The id must be new; created_s and revision are the engine's. Pinned as soon as it is there, if
  /// the pins have room.
  DocumentListing listing;
  /// What it extends, or empty: then its text stands behind the version of that document which is
  /// kept nearest to `parent_keep_ratio` (GenerateRequest::keep_ratio), as a document of its own
  /// with the same rules. It needs no prefix, lives in memory only, and keeps its parent's pages.
  std::string parent;
  std::optional<double> parent_keep_ratio;
  std::vector<std::string> groups;  // whose documents it may extend
  std::vector<TokenId> prefix;
  std::vector<TokenId> context;
  RepeatPrompts prompts;
  std::vector<VersionSpec> versions;  // empty: only every pair
  bool keep_full = false;             // keep the version with every pair beside the others
  bool keep_scores = true;            // so that add_version() need not score again
};

/// What may be changed of a document; nothing: as it is.
struct DocumentChange {
  std::optional<std::string> name;
  std::optional<int64_t> ttl_s;
  std::optional<bool> pinned;
  std::optional<std::map<std::string, std::string>> metadata;
};
enum class ChangeAnswer : uint8_t { kChanged, kNotFound, kNoRoomToPin };

struct DocumentInfo {
  DocumentStore::Info stored;
  std::shared_ptr<DocumentTask> task;  // while something of it is being made
};

/// One version of a document in detail.
struct VersionDetail {
  VersionIdentity version;
  std::shared_ptr<const DocumentIdentity> identity;
  DocumentShape shape;
  std::shared_ptr<const ScoreSet> scores;  // null: not kept, or not in memory
  std::string file;                        // its path; "": not on disk, or not yet
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
  /// Likewise, for a document without tokens, ratios outside (0, 1], listings that no file can
  /// hold.
  std::shared_ptr<DocumentTask> create_document(DocumentRequest request);
  /// One more compressed version of a document: cut from a version that keeps more if its scores
  /// were kept, else prefilled again. Throws and returns as create_document(); what is wrong with
  /// the document is told by the task.
  std::shared_ptr<DocumentTask> add_version(const Requester& requester, const std::string& id,
                                            const RepeatPrompts& prompts, const VersionSpec& spec);
  /// Requests and tasks by their id. What has ended already is left alone.
  void cancel(WorkId id);

  // These answer at the next step. Documents of others are not found.
  std::future<std::optional<DocumentInfo>> document(Requester requester, std::string id);
  std::future<std::vector<DocumentInfo>> documents(Requester requester);
  /// Of the version kept nearest to the ratio, without one of the smallest.
  std::future<std::optional<VersionDetail>> version_detail(Requester requester, std::string id,
                                                           std::optional<double> keep_ratio);
  /// The id of a document that was made of the same in the same scope; "" if there is none.
  std::future<std::string> find_same(DocumentRequest request);
  /// Throws Error(kUsage) for a name or a time that no file can hold.
  std::future<ChangeAnswer> change_document(Requester requester, std::string id,
                                            DocumentChange change);
  /// False: not found. New requests don't find it any more; its pages go with its last reader.
  std::future<bool> drop_document(Requester requester, std::string id);
  /// The key of a file to be imported (paging/document_import.h). REQUIRES: there is a folder.
  std::future<FileKey> make_file_key(std::string id);
  /// The file has that key, that header, and is durable: it becomes a document that is on disk.
  /// What isn't added is left to the caller. REQUIRES: as DocumentStore::import_file().
  std::future<DocumentStore::Added> import_document(FileKey key, DocumentHeader header);
  /// What was in the folder at the start and isn't served.
  std::span<const DocumentDirectory::Finding> findings() const;
  /// What went wrong with files since the last call, one line each.
  std::future<std::vector<std::string>> take_file_errors();

  int64_t context_max() const { return context_max_; }
  // Of the last step that ended:
  EngineStats stats();

  /// One step on the calling thread. False if there was nothing to do.
  bool step();
  /// step() on a thread of the engine's own, and the files' work on another, until stop(). That
  /// ends when the files are written.
  void start();
  void stop();

  /// For tests and tools that drive the engine themselves; only between steps.
  Scheduler& scheduler() { return scheduler_; }
  BlockPool& pool() { return pool_; }
  PrefixIndex& index() { return index_; }
  DocumentStore& store() { return store_; }

 private:
  struct LiveChoice;
  struct LiveRequest;
  struct LiveTask;
  struct Waiting;
  using Command = std::function<void()>;

  // engine.cc: commands, steps, requests
  bool post(Command command, bool bounded);
  void run_commands();
  void begin(GenerateRequest request, const std::shared_ptr<OutputStream>& stream);
  void serve(GenerateRequest request, const std::shared_ptr<OutputStream>& stream,
             const DocumentStore::Lease& lease, bool was_on_disk);
  void end(WorkId id);
  void take_events(const StepResult& result);
  void tell_progress(const StepPlan& plan);
  void on_token(const Event& event, const StepResult& result);
  void on_finished(const Event& event, const StepResult& result);
  std::string space(const std::string& tenant) const;
  static std::string chain_of(const FileKey& key);

  // engine_documents.cc: what is known and made of documents
  template <typename Result>
  std::future<Result> ask(std::function<Result()> question);
  void check(const DocumentRequest& request) const;
  void begin(const DocumentRequest& request, const std::shared_ptr<DocumentTask>& task);
  void begin_version(const Requester& requester, const std::string& id,
                     const RepeatPrompts& prompts, const VersionSpec& version,
                     const std::shared_ptr<DocumentTask>& task);
  DocumentSpec spec_of_version(const std::string& tenant, const LiveTask& live) const;
  void submit_job(DocumentSpec spec, LiveTask live);
  void begin_child(const DocumentRequest& request, const DocumentStore::Lease& parent,
                   const std::shared_ptr<DocumentTask>& task);
  void add_document(const DocumentRequest& request, const DocumentStore::Lease& parent,
                    DocumentIdentity identity, const std::shared_ptr<DocumentTask>& task);
  DocumentIdentity identity_of(const DocumentRequest& request) const;
  std::optional<DocumentInfo> describe(const std::string& id, const Requester& requester) const;
  bool is_theirs(const std::string& id, const Requester& requester) const;
  /// REQUIRES: it is there.
  DocumentStore::Info stored(const std::string& id) const;
  bool is_ready(const std::string& id, std::optional<double> keep_ratio) const;
  bool drop(const std::string& id);
  void on_job(const Event& event);
  void end_task(WorkId id, const std::string& error);

  // engine_moves.cc: which documents are in memory
  void open_folder();
  bool run_documents();
  bool run_files();
  void finish_files();
  void take_done(DocumentDisk::Done done);
  void wait_for_document(Waiting waiting);
  bool serve_waiting();
  bool restore();
  int64_t reclaim(int64_t blocks, bool urgent);

  const Model& model_;
  const Tokenizer& tokenizer_;
  const Clock& clock_;
  EngineOptions options_;
  int64_t context_max_;
  Transformer transformer_;
  BlockPool pool_;  // outlives everything that holds blocks
  DocumentStore store_;
  PrefixIndex index_;
  ModelDevice device_;
  Scheduler scheduler_;
  StepResult result_;
  std::vector<Event> events_;  // being handled
  Trace trace_;
  std::map<WorkId, std::unique_ptr<LiveRequest>> requests_;
  std::map<WorkId, LiveTask> tasks_;
  std::deque<Waiting> waiting_;           // for a document, in the order of arrival
  std::deque<FileKey> restores_;          // to be read, in this order
  BlockReservation gathered_;             // for the first of them
  int64_t expired_s_ = 0;                 // when the times to live were looked at
  std::unique_ptr<DocumentDisk> disk_;    // null: no folder
  std::vector<std::string> file_errors_;  // one line each

  std::atomic<WorkId> next_id_{1};
  std::mutex mutex_;
  std::condition_variable posted_;
  std::deque<Command> inbox_;  // guarded by mutex_
  bool stopping_ = false;      // likewise
  EngineStats stats_;          // likewise
  std::thread thread_;
};

}  // namespace pagezip
