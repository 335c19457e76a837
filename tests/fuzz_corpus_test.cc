// Every stored input of the fuzzers, with the compiler and the sanitizers of the build in hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/fuzz/targets.h"

namespace pagezip::fuzz {
namespace {

std::vector<std::filesystem::path> inputs_of(const std::string& target) {
  const std::string folder = std::string(PAGEZIP_SOURCE_DIR) + "/tests/fuzz/corpus/" + target;
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

TEST(FuzzCorpus, EveryInputPasses) {
  for (const Target& target : targets()) {
    for (const std::filesystem::path& path : inputs_of(target.name)) {
      SCOPED_TRACE(path);
      std::ifstream in(path, std::ios::binary);
      const std::vector<char> bytes(std::istreambuf_iterator<char>(in), {});
      const bool accepted = target.run(std::as_bytes(std::span(bytes)));
      // A seed that is refused starts the fuzzer nowhere: make_corpus writes new ones.
      if (path.filename().string().starts_with("seed-")) {
        EXPECT_TRUE(accepted);
      }
    }
  }
}

TEST(FuzzCorpus, EveryTargetTakesNothing) {
  for (const Target& target : targets()) target.run({});
}

TEST(FuzzCorpus, EveryCutInputPasses) {
  for (const Target& target : targets()) {
    for (const std::filesystem::path& path : inputs_of(target.name)) {
      std::ifstream in(path, std::ios::binary);
      const std::vector<char> bytes(std::istreambuf_iterator<char>(in), {});
      const size_t step = std::max<size_t>(1, bytes.size() / 100);
      for (size_t size = 0; size < bytes.size(); size += step) {
        SCOPED_TRACE(path.string() + " cut to " + std::to_string(size));
        target.run(std::as_bytes(std::span(bytes)).first(size));
      }
    }
  }
}

}  // namespace
}  // namespace pagezip::fuzz
