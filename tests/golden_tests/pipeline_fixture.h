// What the pipeline tests on real models share: one loaded model at a time, golden ids, payloads.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/backend.h"
#include "engine/pipeline.h"
#include "tests/golden_tests/golden_files.h"

namespace pagezip {

inline bool go_on(Stage, int64_t, int64_t) { return true; }

inline std::vector<TokenId> ids(const nlohmann::json& json) {
  return json.get<std::vector<TokenId>>();
}

/// The model's name as part of a test's name.
inline std::string test_name(const GoldenModel& model) {
  std::string name = model.name;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == '-' || c == '.'; }, '_');
  return name;
}

/// The greedy choice.
inline TokenId best_token(std::span<const float> logits) {
  return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

/// What runs the models: the CPU's, unless PAGEZIP_TEST_BACKEND=cuda.
inline const Kernels& golden_kernels() {
  const char* backend = std::getenv("PAGEZIP_TEST_BACKEND");
  return kernels_of(backend != nullptr && std::string(backend) == "cuda" ? Backend::kCuda
                                                                         : Backend::kCpu);
}

/// Keeps the last model: tests of the same model follow each other, and float32 weights are large.
inline const Model& load_model(const GoldenModel& golden, ActivationType activations) {
  static ThreadPool threads(2);
  static std::pair<std::string, ActivationType> loaded;
  static std::unique_ptr<Model> model;
  const std::pair<std::string, ActivationType> wanted(golden.file, activations);
  if (model == nullptr || loaded != wanted) {
    model = nullptr;
    model = std::make_unique<Model>(GgufFile::open(model_path(golden)), golden_kernels(),
                                    activations, threads, [](int64_t, int64_t) {});
    loaded = wanted;
  }
  return *model;
}

/// The golden document as token ids.
struct GoldenText {
  explicit GoldenText(const nlohmann::json& golden)
      : prefix(ids(golden["prefix_ids"])),
        context(ids(golden["context_ids"])),
        prompts{ids(golden["first_prompt_ids"]), ids(golden["next_prompt_ids"]),
                ids(golden["postfix_ids"])} {}
  std::vector<TokenId> prefix;
  std::vector<TokenId> context;
  RepeatPrompts prompts;
};

/// The raw bits of every pair of the global group: [layer, head, pair, head_dim, K then V].
inline std::vector<uint32_t> payload(const Document& document, const PageLayout& page) {
  const Segment segment = document.segment(0);
  const int64_t tokens = page.page_tokens;
  const auto load = [](const std::byte* p, int64_t size) {
    uint32_t raw = 0;
    std::memcpy(&raw, p, static_cast<size_t>(size));
    return raw;
  };
  std::vector<uint32_t> bits;
  for (int list = 0; list < document.global_layers() * segment.heads; ++list) {
    const int layer = list / segment.heads;
    const int head = list % segment.heads;
    for (int64_t pair = 0; pair < segment.length(layer, head); ++pair) {
      const std::byte* k = segment.page(layer, head, pair / tokens);
      const std::byte* v = k + page.k_bytes();
      const int64_t slot = pair % tokens;
      for (int64_t d = 0; d < page.head_dim; ++d) {
        bits.push_back(
            load(k + (d * tokens + slot) * bytes_of(page.k_type), bytes_of(page.k_type)));
        bits.push_back(
            load(v + (slot * page.head_dim + d) * bytes_of(page.v_type), bytes_of(page.v_type)));
      }
    }
  }
  return bits;
}

}  // namespace pagezip
