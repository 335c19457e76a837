// The scheduler under seeded simulation: see tests/sim/simulation.h.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/sim/simulation.h"

namespace pagezip::sim {
namespace {

int64_t number(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoll(text, nullptr, 10);
}

// SIM_SEED=n runs one seed, SIM_RUNS=n that many.
TEST(SchedulerSim, Swarm) {
  Marks marks;
  const auto first = static_cast<uint64_t>(number("SIM_SEED", 1));
  const bool full = std::getenv("PAGEZIP_TEST_FULL") != nullptr;
  const int64_t runs = number("SIM_RUNS", std::getenv("SIM_SEED") != nullptr ? 1
                                          : full                             ? 2000
                                                                             : 1000);
  for (uint64_t seed = first; seed < first + static_cast<uint64_t>(runs); ++seed) {
    const std::string failure = simulate(seed, marks);
    if (!failure.empty()) {
      FAIL() << "SIM_SEED=" << seed << " " << failure;
    }
  }
  for (const auto& [path, hits] : marks) {
    RecordProperty(path, static_cast<int>(hits));
  }
  if (runs < 1000) {
    return;
  }
  for (const char* path : {"prefix hit",
                           "question on a compressed document",
                           "question on an extended document",
                           "extension",
                           "a lower ratio of a cut version",
                           "a lower ratio of a full version",
                           "busy",
                           "too large",
                           "kept scores",
                           "cancelled",
                           "failed step",
                           "job done",
                           "documents reclaimed",
                           "preempted",
                           "sent back",
                           "joined",
                           "forked",
                           "copied tails",
                           "fenced",
                           "log-probabilities of a prompt",
                           "a scored row computed again",
                           "stopped",
                           "stopped after its end",
                           "burst",
                           "clock went back",
                           "clock jumped"}) {
    EXPECT_GT(marks[path], 10) << path;
  }
}

Options of_two_layers() {
  Options o;
  o.shape.is_global = {true, true};
  o.shape.groups = make_kv_groups(o.shape.is_global, 0);
  o.shape.geometry = {{KvType::kF16, KvType::kF16, 16, 16}, 2, 2};
  o.shape.vocab = 60;
  o.scheduler.score_layers = 2;
  o.scheduler.end_tokens = {0};
  o.scheduler.depth = 2;
  o.cost.layers = 2;
  return o;
}

// What a step in flight reads stays, also where it costs nothing. (Seed 59,040 once.)
TEST(SchedulerSim, ATinyDocumentIsCancelledAtAnyTime) {
  Marks marks;
  for (int commits = 0; commits < 12; ++commits) {
    Options o = of_two_layers();
    o.blocks = 16;
    o.document_max = 1;
    Simulation simulation(o, 1, marks);
    DocumentSpec document;
    document.id = 1;
    document.space = "documents";
    document.context = {7};
    document.chunks = {{0, 1, {1, 2, 7}}};
    document.versions = {{0.3, false, 0}};
    simulation.submit(std::move(document), nullptr, false);
    for (int i = 0; i <= commits; ++i) {
      while (simulation.in_flight() < 2 && simulation.plan()) {
      }
      if (i < commits && simulation.in_flight() > 0) {
        simulation.run_and_commit();
      }
    }
    simulation.cancel(1);
    while (simulation.in_flight() > 0) {
      simulation.run_and_commit();
    }
    ASSERT_EQ(simulation.finish(), "") << commits << "\n" << simulation.log();
  }
  EXPECT_GT(marks["job done"], 0) << "before it was cancelled";
}

// Half-done documents that hold every block would end this.
TEST(SchedulerSim, DocumentsAndChatsThatDontFitTogetherAllFinish) {
  Prng prng(1);
  Options o = of_two_layers();
  o.prompt_max = 30;
  o.output_max = 60;
  o.document_max = 320;  // 20 blocks
  o.blocks = 64;         // 3.2 of them
  const auto tokens = [&](int64_t count) {
    std::vector<TokenId> ids;
    for (int64_t i = 0; i < count; ++i) ids.push_back(static_cast<TokenId>(prng.range(1, 59)));
    return ids;
  };
  Marks marks;
  Simulation simulation(o, 1, marks);
  for (WorkId id = 1; id <= 28; ++id) {
    if (id % 7 >= 5) {
      RequestSpec chat;
      chat.id = id;
      chat.space = "chats";
      chat.prompt = tokens(30);
      chat.output_max = 60;
      chat.ignore_end = true;
      simulation.submit(std::move(chat), nullptr);
      continue;
    }
    DocumentSpec document;
    document.id = id;
    document.space = "documents";
    document.context = tokens(320);
    document.chunks = {{0, 160, tokens(170)}, {160, 320, tokens(170)}};
    document.versions = {{0.3, false, 0}};
    simulation.submit(std::move(document), nullptr, false);
  }
  EXPECT_EQ(simulation.finish(), "") << simulation.log();
  EXPECT_EQ(marks["job done"], 20);
}

TEST(SchedulerSim, SameSeedSameRun) {
  Marks marks;
  uint64_t first = 0;
  uint64_t second = 1;
  simulate(7, marks, &first);
  simulate(7, marks, &second);
  EXPECT_EQ(first, second);
}

}  // namespace
}  // namespace pagezip::sim
