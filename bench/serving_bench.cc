// The engine under load, on a real model: one JSON object a line.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "base/prng.h"
#include "engine/engine.h"

namespace pagezip {
namespace {

constexpr const char* kUsage =
    "serving_bench --model M.gguf [--what isolation|sharing|capacity] [--document TOKENS]\n"
    "              [--decoders N] [--ratio R | --step-target-ms MS] [--threads N] [--trace FILE]\n"
    "\n"
    "isolation  step times of decoding requests, alone and while a document is compressed beside\n"
    "           them; --ratio is the step target's to a decode step\n"
    "sharing    memory and speed of many requests on one compressed document\n"
    "capacity   documents that fit a fixed pool, whole and compressed\n";

struct Arguments {
  std::string model;
  std::string what = "sharing";
  int64_t document = 4000;
  int64_t decoders = 16;
  double ratio = 2;           // of the step target to a decode step alone
  double step_target_ms = 0;  // or, if positive, the target
  std::string trace;
  int threads = static_cast<int>(std::thread::hardware_concurrency());
};

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0
                        : values[static_cast<size_t>(q * static_cast<double>(values.size() - 1))];
}

class Bench {
 public:
  explicit Bench(const Arguments& arguments)
      : arguments_(arguments),
        threads_(arguments.threads),
        model_(GgufFile::open(arguments.model), cpu_kernels(), ActivationType::kQ8, threads_,
               [](int64_t, int64_t) {}),
        tokenizer_(model_.file()) {}

  void isolation() {
    EngineOptions o = options(arguments_.document * 2 + arguments_.decoders * 600);
    start(o);
    const double alone = compress("alone", nullptr);
    decoders_ = arguments_.decoders;
    steps(40);  // the first prompts
    const std::vector<double> decode = steps(200);
    std::vector<double> mixed;
    const double beside = compress("beside", &mixed);
    const std::vector<double> after = steps(200);
    std::vector<double> both = decode;
    both.insert(both.end(), after.begin(), after.end());
    const double median = quantile(both, 0.5);
    const double target =
        arguments_.step_target_ms > 0 ? arguments_.step_target_ms * 1e3 : arguments_.ratio * median;
    fmt::print(
        "{{\"what\": \"isolation\", \"decoders\": {}, \"ratio\": {}, \"decode_ms\": {:.2f}, "
        "\"decode_p99_ms\": {:.2f}, \"target_ms\": {:.2f}, \"mixed_ms\": {:.2f}, "
        "\"mixed_p99_ms\": {:.2f}, \"mixed_steps\": {}, \"alone_s\": {:.2f}, \"beside_s\": {:.2f}, "
        "\"speed\": {:.3f}, \"speed_wanted\": {:.3f}}}\n",
        arguments_.decoders, arguments_.ratio, median / 1e3, quantile(both, 0.99) / 1e3,
        target / 1e3, quantile(mixed, 0.5) / 1e3, quantile(mixed, 0.99) / 1e3, mixed.size(),
        alone / 1e6, beside / 1e6, alone / beside, 0.7 * (1 - median / target));
  }

  void sharing() {
    start(options(arguments_.document * 2 + arguments_.decoders * 400 + 2000));
    compress("doc", nullptr);
    engine_->index().clear();
    const int64_t document_blocks = engine_->pool().blocks_in_use();
    const double one = decode_rate(1, nullptr);
    int64_t blocks = 0;
    const double many = decode_rate(arguments_.decoders, &blocks);
    const KvGeometry& g = engine_->pool().geometry();
    const auto groups = static_cast<int64_t>(model_.kv_groups().size());
    const int64_t suffixes = arguments_.decoders * groups * g.pages_for(kQuestion + kAnswer);
    fmt::print(
        "{{\"what\": \"sharing\", \"requests\": {}, \"document_blocks\": {}, \"blocks\": {}, "
        "\"blocks_allowed\": {:.0f}, \"tokens_per_s_one\": {:.1f}, \"tokens_per_s\": {:.1f}, "
        "\"ratio\": {:.2f}}}\n",
        arguments_.decoders, document_blocks, blocks,
        1.05 * static_cast<double>(document_blocks + suffixes), one, many, many / one);
  }

  void capacity() {
    const int64_t room = arguments_.document * 8;
    for (const double keep : {1.0, 0.3}) {
      start(options(room));
      int64_t resident = 0;
      for (int i = 0; i < 60; ++i) {
        const std::string id = "doc" + std::to_string(i);
        make(id, keep, nullptr);
        engine_->index().clear();
        int64_t now = 0;
        for (int k = 0; k <= i; ++k) {
          // A document that was evicted to make room refuses.
          const auto stream = engine_->submit(request(1, 1, "doc" + std::to_string(k)));
          while (engine_->step()) {
          }
          const auto event = stream->next(std::chrono::milliseconds(0));
          now += event.has_value() && !event->refusal.has_value() ? 1 : 0;
        }
        resident = std::max(resident, now);
        if (now < i + 1) {
          break;
        }
      }
      fmt::print(
          "{{\"what\": \"capacity\", \"keep\": {}, \"pool_tokens\": {}, \"resident\": {}}}\n", keep,
          room, resident);
      std::fflush(stdout);
    }
  }

 private:
  static constexpr int64_t kQuestion = 16;
  static constexpr int64_t kAnswer = 300;

  EngineOptions options(int64_t tokens) const {
    EngineOptions o;
    o.scheduler.step_target_ratio = arguments_.ratio;
    o.scheduler.step_target_us = arguments_.step_target_ms * 1e3;
    o.trace = arguments_.trace;
    o.pool_blocks = tokens / o.page_tokens * static_cast<int64_t>(model_.kv_groups().size());
    return o;
  }
  void start(const EngineOptions& o) {
    engine_ = nullptr;
    engine_ = std::make_unique<Engine>(model_, tokenizer_, cpu_kernels(), ActivationType::kQ8,
                                       threads_, o, clock_);
  }
  std::vector<TokenId> tokens(int64_t count) {
    std::vector<TokenId> ids(static_cast<size_t>(count));
    for (TokenId& id : ids) {
      id = static_cast<TokenId>(prng_.below(static_cast<uint64_t>(model_.config().vocab)));
    }
    return ids;
  }
  GenerateRequest request(int64_t prompt, int64_t output, const std::string& document) {
    GenerateRequest r;
    r.tenant = "bench";
    r.document = document;
    r.prompt = tokens(prompt);
    r.output_max = output;
    r.ignore_end = true;
    return r;
  }
  // Microseconds from the submission to the end.
  double make(const std::string& id, double keep, std::vector<double>* step_us) {
    DocumentRequest d;
    d.tenant = "bench";
    d.listing.id = id;
    d.prefix = tokens(16);
    d.context = tokens(arguments_.document);
    d.prompts = {tokens(8), tokens(12), tokens(8)};
    if (keep < 1) {
      d.versions = {{keep, false, 0}};
    }
    const int64_t begin = clock_.now_us();
    const auto task = engine_->create_document(d);
    while (task->status().state == DocumentTask::State::kWorking) {
      const double us = step_us_once();
      if (step_us != nullptr) {
        step_us->push_back(us);
      }
    }
    if (task->status().state == DocumentTask::State::kFailed) {
      fmt::print(stderr, "{}\n", task->status().error);
    }
    return static_cast<double>(clock_.now_us() - begin);
  }
  double compress(const std::string& id, std::vector<double>* step_us) {
    return make(id, 0.3, step_us);
  }
  // Keeps so many requests decoding: who ends is followed by a new one.
  void follow_up() {
    const Stats stats = engine_->scheduler().stats();
    for (int64_t open = stats.running + stats.waiting; open < decoders_; ++open) {
      engine_->submit(request(32, prng_.range(100, 500), ""));
    }
  }
  double step_us_once() {
    follow_up();
    const int64_t begin = clock_.now_us();
    engine_->step();
    return static_cast<double>(clock_.now_us() - begin);
  }
  std::vector<double> steps(int count) {
    std::vector<double> us;
    for (int i = 0; i < count; ++i) {
      us.push_back(step_us_once());
    }
    return us;
  }
  // Tokens per second of `count` requests on the document while all of them decode.
  double decode_rate(int64_t count, int64_t* blocks) {
    std::vector<std::shared_ptr<OutputStream>> streams;
    for (int64_t i = 0; i < count; ++i) {
      streams.push_back(engine_->submit(request(kQuestion, kAnswer, "doc")));
    }
    const auto produced = [&] { return engine_->scheduler().stats().rows_decode; };
    for (int64_t last = 0; produced() - last < count;) {
      last = produced();
      engine_->step();
    }
    for (int i = 0; i < 4; ++i) {
      engine_->step();
    }
    const int64_t before = produced();
    const std::vector<double> us = steps(40);
    const auto made = static_cast<double>(produced() - before) / 40;
    const double rate = made / quantile(us, 0.5) * 1e6;
    int64_t most = 0;
    do {
      most = std::max(most, engine_->pool().blocks_in_use());
    } while (engine_->step());
    if (blocks != nullptr) {
      *blocks = most;
    }
    engine_->index().clear();
    return rate;
  }

  Arguments arguments_;
  ThreadPool threads_;
  SteadyClock clock_;
  Model model_;
  Tokenizer tokenizer_;
  Prng prng_{1};
  int64_t decoders_ = 0;
  std::unique_ptr<Engine> engine_;
};

// False: they make no sense.
bool parse(int argc, char** argv, Arguments& a) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    const std::string value = argv[i + 1];
    if (name == "--model") {
      a.model = value;
    } else if (name == "--what") {
      a.what = value;
    } else if (name == "--document") {
      a.document = std::stoll(value);
    } else if (name == "--decoders") {
      a.decoders = std::stoll(value);
    } else if (name == "--ratio") {
      a.ratio = std::stod(value);
    } else if (name == "--step-target-ms") {
      a.step_target_ms = std::stod(value);
    } else if (name == "--trace") {
      a.trace = value;
    } else if (name == "--threads") {
      a.threads = std::stoi(value);
    } else {
      return false;
    }
  }
  const bool known = a.what == "isolation" || a.what == "sharing" || a.what == "capacity";
  return argc % 2 == 1 && known && !a.model.empty();
}

}  // namespace
}  // namespace pagezip

int main(int argc, char** argv) {
  try {
    pagezip::Arguments a;
    if (!pagezip::parse(argc, argv, a)) {
      std::fputs(pagezip::kUsage, stderr);
      return 2;
    }
    pagezip::Bench bench(a);
    if (a.what == "isolation") {
      bench.isolation();
    } else if (a.what == "sharing") {
      bench.sharing();
    } else {
      bench.capacity();
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "serving_bench: {}\n", error.what());
    return 1;
  }
  return 0;
}
