// The trace of an engine: valid, nested, and with an end for everything that began.
#include "engine/trace.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/prng.h"
#include "tests/temp_folder.h"
#include "tests/tiny_engine.h"

namespace pagezip {
namespace {

using nlohmann::json;

std::vector<TokenId> tokens(const Model& model, Prng& prng, int64_t count) {
  std::vector<TokenId> ids(static_cast<size_t>(count));
  for (TokenId& id : ids) {
    id = static_cast<TokenId>(prng.below(static_cast<uint64_t>(model.config().vocab)));
  }
  return ids;
}

GenerateRequest request(std::vector<TokenId> prompt, int64_t output_max) {
  GenerateRequest r;
  r.tenant = "a";
  r.prompt = std::move(prompt);
  r.output_max = output_max;
  r.ignore_end = true;
  return r;
}

class TraceTest : public testing::Test {
 protected:
  json events() const {
    std::ifstream file(path_);
    return json::parse(file);
  }

  /// Complete events of one thread nest, and those inside are no longer than what they are in.
  static void expect_nested_slices(const json& events) {
    std::vector<std::pair<int64_t, int64_t>> open;
    for (const json& event : events) {
      if (event["ph"] != "X") {
        continue;
      }
      const int64_t begin = event["ts"];
      const int64_t end = begin + event["dur"].get<int64_t>();
      while (!open.empty() && open.back().second <= begin && open.back().second < end) {
        open.pop_back();
      }
      const std::string name = event["name"];
      if (name == "step" || name == "failed step") {
        open.clear();
      } else {
        ASSERT_FALSE(open.empty()) << event;
        EXPECT_LE(open.front().first, begin) << event;
        EXPECT_GE(open.front().second, end) << event;
      }
      open.emplace_back(begin, end);
    }
  }

  /// Every track's slices end in the opposite order of their beginnings. Returns the phases of each
  /// track in order, and how it finished.
  static std::map<std::string, std::vector<std::string>> tracks(const json& events) {
    std::map<std::string, std::vector<std::string>> open;
    std::map<std::string, std::vector<std::string>> phases;
    int64_t last = 0;
    for (const json& event : events) {
      const std::string type = event["ph"];
      if (type != "b" && type != "e") {
        continue;
      }
      EXPECT_GE(event["ts"].get<int64_t>(), last);
      last = event["ts"];
      const std::string id = event["cat"].get<std::string>() + " " + event["id"].get<std::string>();
      const std::string name = event["name"];
      if (type == "b") {
        if (!open[id].empty()) {
          phases[id].push_back(name);
        }
        open[id].push_back(name);
      } else if (open[id].empty() || open[id].back() != name) {
        ADD_FAILURE() << "doesn't end what began last: " << event;
      } else {
        open[id].pop_back();
        if (event["args"].contains("finish")) {
          phases[id].push_back(event["args"]["finish"]);
        }
      }
    }
    for (const auto& [id, names] : open) {
      EXPECT_TRUE(names.empty()) << id << " never ends";
    }
    return phases;
  }

  const TempFolder folder_;
  const std::string path_ = folder_.path("trace.json");
};

using Phases = std::vector<std::string>;

TEST_F(TraceTest, OfAnEngineHasEverythingInIt) {
  TinyWorld tiny("llama-gqa3");
  tiny.options.trace = path_;
  Prng prng(1);
  int64_t steps = 0;
  WorkId done = 0;
  WorkId cancelled = 0;
  WorkId forked = 0;
  WorkId document = 0;
  WorkId never = 0;
  {
    const auto engine = tiny.engine();
    done = engine->submit(request(tokens(tiny.model, prng, 20), 5))->id();
    cancelled = engine->submit(request(tokens(tiny.model, prng, 20), 1'000))->id();
    GenerateRequest two = request(tokens(tiny.model, prng, 20), 3);
    two.choices = 2;
    forked = engine->submit(two)->id();
    DocumentRequest made;
    made.tenant = "a";
    made.listing.id = "doc";
    made.context = tokens(tiny.model, prng, 40);
    made.prompts = {{1, 2, 3}, {4, 5, 6}, {7, 8}};
    made.versions = {{0.3, false, 0}};
    document = engine->create_document(made)->id();
    for (int i = 0; i < 12; ++i) {
      EXPECT_TRUE(engine->step());
    }
    engine->cancel(cancelled);
    while (engine->step()) {
    }
    steps = engine->stats().work.steps;
    never = engine->submit(request(tokens(tiny.model, prng, 20), 3))->id();
  }
  const json all = events();
  expect_nested_slices(all);
  const auto found = tracks(all);
  const auto name = [](const char* category, WorkId id, int choice = 0) {
    return std::string(category) + " " + std::to_string(id) + "." + std::to_string(choice);
  };
  EXPECT_EQ(found.at(name("request", done)), (Phases{"queued", "prefill", "decode", "length"}));
  EXPECT_EQ(found.at(name("request", cancelled)),
            (Phases{"queued", "prefill", "decode", "cancelled"}));
  EXPECT_EQ(found.at(name("request", forked, 1)), (Phases{"decode", "length"}));
  EXPECT_EQ(found.at(name("document", document)),
            (Phases{"queued", "prefill", "score", "select", "compact", "done"}));
  EXPECT_EQ(found.at(name("request", never)), (Phases{"queued", "cancelled"}));
  EXPECT_EQ(found.size(), 6u);
  std::map<std::string, int64_t> slices;
  std::map<std::string, int64_t> counters;
  for (const json& event : all) {
    if (event["ph"] == "X") {
      ++slices[event["name"]];
      EXPECT_EQ(event["dur"], event["args"]["measured_us"]);
      EXPECT_GT(event["args"]["predicted_us"].get<double>(), 0);
    } else if (event["ph"] == "C") {
      ++counters[event["name"]];
    }
  }
  EXPECT_EQ(slices["step"], steps);
  EXPECT_GT(slices["rows"], 10);
  EXPECT_GT(slices["score tiles"], 0);
  EXPECT_GT(slices["select and compact"], 1);
  EXPECT_EQ(counters["blocks free"], steps);
}

TEST_F(TraceTest, OfFailuresEndsWhatIsOpen) {
  {
    Trace trace(path_);
    StepPlan plan;
    plan.rows.emplace_back();
    plan.rows_us = 50;
    StepResult result;
    trace.submitted(1, false, 100);
    trace.submitted(2, true, 100);
    trace.submitted(3, false, 100);
    Event event;
    event.key = {1, 0};
    event.kind = Event::Kind::kStarted;
    trace.event(event, 110);
    result.rows_us = 1'000;  // more than the step: a device may round
    trace.step(plan, result, 110, 120);
    result.failed = true;
    trace.step(plan, result, 120, 130);
    event.kind = Event::Kind::kFinished;
    event.finish = FinishReason::kFailed;
    trace.event(event, 130);
    event.key = {1, 1};  // was never forked
    trace.event(event, 130);
    event.key = {2, 0};
    event.kind = Event::Kind::kJobFailed;
    event.error = "a \"quoted\" reason";
    trace.event(event, 140);
  }
  const json all = events();
  expect_nested_slices(all);
  const auto found = tracks(all);
  EXPECT_EQ(found.at("request 1.0"), (Phases{"queued", "prefill", "failed"}));
  EXPECT_EQ(found.at("document 2.0"), (Phases{"queued", "failed"}));
  EXPECT_EQ(found.at("request 3.0"), (Phases{"queued", "open"}));
  EXPECT_EQ(std::count_if(all.begin(), all.end(),
                          [](const json& e) { return e["name"] == "failed step"; }),
            1);
}

TEST_F(TraceTest, LongerThanItsBuffer) {
  {
    Trace trace(path_);
    for (int i = 1; i <= 2'000; ++i) {
      trace.submitted(static_cast<WorkId>(i), false, i);
    }
  }
  EXPECT_EQ(tracks(events()).size(), 2'000u);
}

TEST_F(TraceTest, WithoutAPathThereIsNone) {
  {
    Trace trace("");
    trace.submitted(1, false, 100);
  }
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_THROW(Trace("/no/such/folder/trace.json"), Error);
}

}  // namespace
}  // namespace pagezip
