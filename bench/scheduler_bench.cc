// What planning a step and taking in its result costs with 256 running requests, on a device that
// computes nothing. Requests end and others follow them, so that a step's share of admissions,
// prompts and published pages is part of the time; submissions and events are the engine's.
//
// Between planning and taking in, the caches of the core are filled with something else, as a
// model's weights do; `in_cache` goes without. Beside the mean: `median_us`, `p99_us`, and
// `allocations` (calls of operator new) a step.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <ctime>
#include <limits>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "base/prng.h"
#include "paging/prefix_index.h"
#include "scheduler/scheduler.h"

namespace {

// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables): operator new has no other way
int64_t allocations = 0;

}  // namespace

// Not inlined, or g++ 12 takes malloc() and operator delete for a pair that doesn't match.
[[gnu::noinline]] void* operator new(size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size)) {
    return memory;
  }
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace pagezip {
namespace {

constexpr int64_t kRunning = 256;

struct Load {
  int64_t output_max = 1'000;   // at least half of it is generated
  int64_t prompt_max = 400;     // likewise
  bool prefixes = false;        // every request starts with one of eight system prompts
  bool documents = false;       // and three of four ask about one of eight documents
  bool document_jobs = false;   // there is always a document being made
  bool weights = true;          // are read between planning and taking in
  bool sliding_groups = false;  // of a model with as many as Gemma 3 with a billion weights
};

KvGeometry geometry() {
  KvGeometry g;
  g.page = {KvType::kF16, KvType::kF16, 16, 64};
  g.kv_heads = 2;
  g.layers_per_block = 4;
  return g;
}

std::vector<KvGroup> groups(const Load& load) {
  std::vector<bool> is_global(4, true);
  is_global.resize(load.sliding_groups ? 26 : 4, false);
  return make_kv_groups(is_global, 512);
}

SchedulerConfig config() {
  SchedulerConfig c;
  c.running_max = kRunning;
  c.score_layers = 4;
  return c;
}

// CPU time: a step is so short that other processes would be most of what a wall clock sees.
double thread_us() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) / 1e3;
}

class Machine {
 public:
  explicit Machine(const Load& load)
      : load_(load),
        groups_(groups(load)),
        pool_(geometry(), int64_t{400'000} * static_cast<int64_t>(groups_.size())),
        index_(std::make_unique<PrefixIndex>(pool_, groups_)),
        scheduler_(std::make_unique<Scheduler>(config(), CostModel(CostCoefficients{}), pool_,
                                               *index_, groups_, [](int64_t, bool) { return 0; })) {
    for (int i = 0; i < 8; ++i) {
      prefixes_.push_back(tokens(256));
    }
    for (int i = 0; load.documents && i < 8; ++i) {
      submit_document();
      while (step() > 0) {
      }
    }
    is_ready_ = true;
    // Until all seats are taken and, where requests end, those that run are of every age.
    for (int i = 0; i < 2'000; ++i) {
      step();
    }
  }
  ~Machine() {
    for (WorkId id = 1; id < next_id_; ++id) {
      scheduler_->cancel(id);
    }
    take_events();
    documents_.clear();
    events_.clear();
    index_->clear();
  }

  /// Microseconds that schedule() and commit() take together; 0 if there is nothing to do.
  double step() {
    while (is_ready_ && open_ < kRunning) {
      submit_request();
    }
    if (is_ready_ && load_.document_jobs && jobs_ == 0) {
      submit_document();
    }
    now_ += 20'000;
    flush_caches();
    const int64_t before = ::allocations;
    const double start = thread_us();
    const StepPlan* plan = scheduler_->schedule(now_);
    const double planned = thread_us();
    if (plan == nullptr) {
      return 0;
    }
    const int64_t allocated = ::allocations - before;
    run(*plan);
    const int64_t between = ::allocations;
    flush_caches();
    const double ran = thread_us();
    scheduler_->commit(result_, now_);
    const double end = thread_us();
    allocations_ = allocated + ::allocations - between;
    take_events();
    return planned - start + (end - ran);
  }
  int64_t allocations() const { return allocations_; }  // of the last step
  Stats stats() const { return scheduler_->stats(); }

 private:
  std::vector<TokenId> tokens(int64_t count) {
    std::vector<TokenId> ids(static_cast<size_t>(count));
    for (TokenId& id : ids) {
      id = static_cast<TokenId>(prng_.below(150'000));
    }
    return ids;
  }

  void submit_request() {
    RequestSpec spec;
    spec.id = next_id_++;
    const uint64_t number = prng_.below(8);
    spec.tenant = "tenant " + std::to_string(number);
    spec.space = "the model and the salt of " + spec.tenant;
    spec.prompt = tokens(prng_.range(load_.prompt_max / 2, load_.prompt_max));
    if (load_.prefixes) {
      spec.prompt.insert(spec.prompt.begin(), prefixes_[number].begin(), prefixes_[number].end());
    }
    if (load_.documents && prng_.chance(0.75)) {
      spec.document = documents_[number];
      spec.space += ", document " + std::to_string(number);
    }
    spec.output_max = prng_.range(load_.output_max / 2, load_.output_max);
    scheduler_->submit(std::move(spec), now_);
    ++open_;
  }

  void submit_document() {
    DocumentSpec spec;
    spec.id = next_id_++;
    spec.tenant = "documents";
    spec.space = "documents";
    spec.context = tokens(4'000);
    spec.chunks = {{0, 2'000, tokens(2'020)}, {2'000, 4'000, tokens(2'020)}};
    spec.versions = {{0.3, false, 0}};
    scheduler_->submit(std::move(spec), now_);
    ++jobs_;
  }

  // The model's weights push everything else out of the caches that a core has to itself.
  void flush_caches() {
    for (size_t i = 0; load_.weights && i < weights_.size(); i += 64) {
      ++weights_[i];
    }
  }

  // Random tokens; a document keeps the same pairs whatever its scores.
  void run(const StepPlan& plan) {
    result_.clear();
    result_.step = plan.step;
    for (int64_t i = 0; i < plan.slots; ++i) {
      result_.tokens.push_back(static_cast<TokenId>(prng_.below(150'000)));
    }
    for (const SelectWork& work : plan.selects) {
      ScoreSet scores = *work.scores;
      scores.scores.assign(scores.scores.size(), 0);
      result_.selections.push_back(select(scores, work.spec));
    }
    result_.rows_us = plan.rows_us;
    result_.tiles_us = plan.tiles_us;
    result_.compacts_us = plan.compacts_us;
  }

  void take_events() {
    scheduler_->take_events(events_);
    for (const Event& event : events_) {
      open_ -= event.kind == Event::Kind::kFinished ? 1 : 0;
      if (event.kind == Event::Kind::kJobDone) {
        --jobs_;
      } else if (event.kind == Event::Kind::kVersionReady && !is_ready_) {
        documents_.push_back(event.document);
      }
    }
  }

  Load load_;
  Prng prng_{1};
  std::vector<KvGroup> groups_;
  BlockPool pool_;  // outlives everything below
  std::vector<std::shared_ptr<const Document>> documents_;
  std::unique_ptr<PrefixIndex> index_;
  std::unique_ptr<Scheduler> scheduler_;
  StepResult result_;
  std::vector<Event> events_;
  std::vector<std::vector<TokenId>> prefixes_;
  WorkId next_id_ = 1;
  TimeUs now_ = 0;
  int64_t open_ = 0;
  int64_t jobs_ = 0;
  bool is_ready_ = false;
  std::vector<char> weights_ = std::vector<char>(4 << 20);
  int64_t allocations_ = 0;
};

double quantile(std::vector<double>& values, double q) {
  const auto place = static_cast<int64_t>(q * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + place, values.end());
  return values[static_cast<size_t>(place)];
}

void steps(benchmark::State& state, const Load& load) {
  Machine machine(load);
  std::vector<double> us;
  int64_t allocations = 0;
  const Stats before = machine.stats();
  for (auto _ : state) {
    us.push_back(machine.step());
    state.SetIterationTime(us.back() / 1e6);
    allocations += machine.allocations();
  }
  const Stats after = machine.stats();
  const auto count = static_cast<double>(us.size());
  state.counters["median_us"] = quantile(us, 0.5);
  state.counters["p99_us"] = quantile(us, 0.99);
  state.counters["allocations"] = static_cast<double>(allocations) / count;
  state.counters["decode_rows"] =
      static_cast<double>(after.rows_decode - before.rows_decode) / count;
  state.counters["finished"] =
      static_cast<double>(after.requests_finished - before.requests_finished) / count;
}

// Nobody comes or goes: decode rows alone.
BENCHMARK_CAPTURE(steps, decode, Load{.output_max = 40'000, .prompt_max = 400})->UseManualTime();
BENCHMARK_CAPTURE(steps, decode_in_cache, Load{.output_max = 40'000, .weights = false})
    ->UseManualTime();
BENCHMARK_CAPTURE(steps, requests, Load{})->UseManualTime();
BENCHMARK_CAPTURE(steps, requests_and_a_document_job, Load{.document_jobs = true})->UseManualTime();
BENCHMARK_CAPTURE(steps, shared_prefixes, Load{.prefixes = true})->UseManualTime();
BENCHMARK_CAPTURE(steps, shared_documents, Load{.prefixes = true, .documents = true})
    ->UseManualTime();
BENCHMARK_CAPTURE(steps, all, Load{.prefixes = true, .documents = true, .document_jobs = true})
    ->UseManualTime();
BENCHMARK_CAPTURE(
    steps, all_sliding,
    Load{.prefixes = true, .documents = true, .document_jobs = true, .sliding_groups = true})
    ->UseManualTime();

}  // namespace
}  // namespace pagezip

BENCHMARK_MAIN();
