// Every order of a handful of events, on a pool that is too small for all of them at once: where
// the random simulation goes far, this leaves nothing out.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>

#include "tests/sim/simulation.h"

namespace pagezip::sim {
namespace {

enum class Action : uint8_t {
  kPlan,
  kCommit,  // the oldest step in flight
  // Each of these at most once.
  kSubmitFirst,
  kSubmitSecond,
  kSubmitDocument,
  kCancelFirst,
  kStopSecond,
  kCancelDocument,
  kFailStep,
  kEnd
};
using Path = std::vector<Action>;

constexpr WorkId kFirst = 1;
constexpr WorkId kSecond = 2;
constexpr WorkId kDocument = 3;

Options options() {
  Options o;
  o.shape.is_global = {true};
  o.shape.groups = make_kv_groups(o.shape.is_global, 0);
  o.shape.geometry = {{KvType::kF16, KvType::kF16, 16, 16}, 1, 1};
  o.shape.vocab = 50;
  o.scheduler.rows_max = 20;
  o.scheduler.running_max = 3;
  o.scheduler.output_min = 1;
  o.scheduler.end_tokens = {0};
  o.scheduler.depth = 2;
  o.cost.layers = 1;
  o.blocks = 8;  // the document's peak is 6, the requests' 2 and 4
  o.prompt_max = 20;
  o.output_max = 14;
  o.document_max = 20;
  return o;
}

std::vector<TokenId> text(TokenId first, int64_t count) {
  std::vector<TokenId> tokens;
  for (int64_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<TokenId>(1 + (first + i) % 49));
  }
  return tokens;
}

class Life {
 public:
  explicit Life(Marks& marks) : simulation_(options(), 1, marks) {}

  /// False if that can't happen now.
  bool act(Action action) {
    const auto bit = 1u << static_cast<unsigned>(action);
    if (action >= Action::kSubmitFirst && (done_ & bit) != 0) {
      return false;
    }
    done_ |= bit;
    switch (action) {
      case Action::kPlan:
        return simulation_.in_flight() < 2 && simulation_.plan() && audit();
      case Action::kCommit:
        if (simulation_.in_flight() == 0) return false;
        simulation_.run_and_commit();
        return audit();
      case Action::kSubmitFirst:
        return submit(kFirst, 1);
      case Action::kSubmitSecond:
        return submit(kSecond, 2);
      case Action::kSubmitDocument:
        return submit_document();
      case Action::kCancelFirst:
        return came(Action::kSubmitFirst) && (simulation_.cancel(kFirst), true);
      case Action::kStopSecond:
        return came(Action::kSubmitSecond) && (simulation_.stop({kSecond, 1}), true);
      case Action::kCancelDocument:
        return came(Action::kSubmitDocument) && (simulation_.cancel(kDocument), true);
      case Action::kFailStep:
        simulation_.fail_next();
        return true;
      case Action::kEnd:
        break;
    }
    return false;
  }
  const std::string& failure() const { return simulation_.failure(); }
  std::string finish() { return simulation_.finish(); }
  std::string log() const { return simulation_.log(); }

 private:
  bool came(Action action) const { return (done_ & 1u << static_cast<unsigned>(action)) != 0; }
  bool audit() {
    simulation_.audit();
    return true;
  }
  // Both have their first block in common.
  bool submit(WorkId id, uint32_t choices) {
    RequestSpec spec;
    spec.id = id;
    spec.space = "shared";
    spec.prompt = text(0, 16 + static_cast<int64_t>(id));
    spec.output_max = id == kFirst ? 14 : 3;
    spec.choices = choices;
    spec.ignore_end = true;
    simulation_.submit(std::move(spec), nullptr);
    return true;
  }
  bool submit_document() {
    DocumentSpec spec;
    spec.id = kDocument;
    spec.space = "shared";
    spec.context = text(0, 20);
    spec.chunks = {{0, 20, text(7, 24)}};
    spec.versions = {{0.5, false, 0}};
    simulation_.submit(std::move(spec), nullptr, false);
    return true;
  }

  Simulation simulation_;
  uint32_t done_ = 0;  // a bit for each action that came
};

std::string text(const Path& path) {
  std::string names;
  for (const Action action : path) {
    names += std::to_string(static_cast<int>(action)) + " ";
  }
  return names;
}

// Counts through all paths of so many actions. Where an action can't happen, all paths that begin
// like that are passed over.
TEST(SchedulerExhaustive, EveryOrderOfAHandfulOfEvents) {
  const size_t depth = std::getenv("PAGEZIP_TEST_FULL") != nullptr ? 9 : 7;
  Marks marks;
  Path path(depth, Action::kPlan);
  size_t changed = 0;  // where this path differs from the one before
  int64_t lives = 0;
  int64_t states = 0;
  while (true) {
    auto life = std::make_unique<Life>(marks);
    size_t applied = 0;
    while (applied < depth && life->act(path[applied]) && life->failure().empty()) {
      states += applied >= changed ? 1 : 0;
      ++applied;
    }
    std::string failure = life->failure();
    if (failure.empty() && applied == depth) {
      ++lives;
      failure = life->finish();
    }
    if (!failure.empty()) {
      const std::string log = life->log();
      (void)life.release();  // the pool's destructor would find it too and end the process
      FAIL() << failure << "\nactions " << text(path) << "\n" << log;
    }
    changed = std::min(applied, depth - 1);
    path.resize(changed + 1);
    for (; !path.empty(); path.pop_back()) {
      path.back() = static_cast<Action>(static_cast<int>(path.back()) + 1);
      if (path.back() != Action::kEnd) break;
    }
    if (path.empty()) break;
    changed = path.size() - 1;
    path.resize(depth, Action::kPlan);
  }
  std::printf("%zu actions: %lld states, %lld lives\n", depth, static_cast<long long>(states),
              static_cast<long long>(lives));
  RecordProperty("states", std::to_string(states));
  EXPECT_GT(lives, 10'000);
  for (const char* reached : {"failed step", "job done", "prefix hit", "forked", "fenced"}) {
    EXPECT_GT(marks[reached], 0) << reached;
  }
}

}  // namespace
}  // namespace pagezip::sim
