// Where the real models and the numbers that belong to them are.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace pagezip {

struct GoldenModel {
  const char* name;  // of the files in tests/golden
  const char* file;  // in the folder PAGEZIP_MODELS
};

inline constexpr GoldenModel kSmolLm2 = {"smollm2-135m", "SmolLM2-135M-Instruct.Q4_1.gguf"};
inline constexpr GoldenModel kQwen25 = {"qwen2.5-coder-0.5b",
                                        "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"};
inline constexpr GoldenModel kGemma3 = {"gemma3-270m", "gemma-3-270m-q4_k_m.gguf"};
// A document of three times the sliding window.
inline constexpr GoldenModel kGemma3Long = {"gemma3-270m-long", "gemma-3-270m-q4_k_m.gguf"};

/// Throws, which fails the test, if PAGEZIP_MODELS is not set or lacks the file.
inline std::string model_path(const GoldenModel& model) {
  const char* folder = std::getenv("PAGEZIP_MODELS");
  if (!folder) throw std::runtime_error("PAGEZIP_MODELS is not set: the folder with the models");
  std::string path = std::string(folder) + "/" + model.file;
  if (!std::ifstream(path)) throw std::runtime_error("PAGEZIP_MODELS lacks " + path);
  return path;
}

/// tests/golden/NAME.KIND, for instance kind = "tokenizer.json".
inline nlohmann::json golden_json(const GoldenModel& model, const std::string& kind) {
  const std::string path =
      std::string(PAGEZIP_SOURCE_DIR) + "/tests/golden/" + model.name + "." + kind;
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);
  return nlohmann::json::parse(file);
}

/// tests/golden/NAME.KIND as the values of a little-endian float32 .npy file, C order.
inline std::vector<float> golden_npy(const GoldenModel& model, const std::string& kind) {
  const std::string path =
      std::string(PAGEZIP_SOURCE_DIR) + "/tests/golden/" + model.name + "." + kind;
  std::ifstream in(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), {});
  if (bytes.compare(0, 6, "\x93NUMPY") != 0 || bytes.find("'<f4'") == std::string::npos) {
    throw std::runtime_error(path + " is no float32 .npy file");
  }
  uint16_t header = 0;
  std::memcpy(&header, bytes.data() + 8, 2);
  const size_t start = size_t{10} + header;
  std::vector<float> values((bytes.size() - start) / sizeof(float));
  std::memcpy(values.data(), bytes.data() + start, values.size() * sizeof(float));
  return values;
}

}  // namespace pagezip
