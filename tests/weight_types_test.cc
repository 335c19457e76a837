#include "kernels/weight_types.h"

#include <bit>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace pagezip {
namespace {

std::vector<std::byte> bytes_of_hex(const std::string& hex) {
  std::vector<std::byte> bytes(hex.size() / 2);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
  }
  return bytes;
}

std::vector<float> floats_of_hex(const std::string& hex) {
  const std::vector<std::byte> bytes = bytes_of_hex(hex);
  std::vector<float> values(bytes.size() / 4);
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

/// Blocks and values made by the Python package `gguf` (tests/data/make_weight_types.py).
nlohmann::json golden() {
  std::ifstream file(PAGEZIP_SOURCE_DIR "/tests/data/weight_types.json");
  return nlohmann::json::parse(file);
}

TEST(WeightTypesTest, InfoMatchesGguf) {
  const nlohmann::json entries = golden();
  ASSERT_EQ(entries.size(), static_cast<size_t>(kWeightTypes));
  for (const auto& entry : entries) {
    const std::string name = entry["type"];
    const auto type = weight_type_of_ggml(entry["ggml_id"]);
    ASSERT_TRUE(type.has_value()) << name;
    EXPECT_EQ(info(*type).name, name);
    EXPECT_EQ(info(*type).ggml_id, entry["ggml_id"]) << name;
    EXPECT_EQ(info(*type).block_values, entry["block_values"]) << name;
    EXPECT_EQ(info(*type).block_bytes, entry["block_bytes"]) << name;
    EXPECT_EQ(row_bytes(*type, 512),
              512 / info(*type).block_values * int64_t{info(*type).block_bytes});
  }
}

TEST(WeightTypesTest, UnknownGgmlIdsGiveNothing) {
  for (const uint32_t id : {4u, 5u, 9u, 15u, 16u, 29u, 31u, 0xffffffffu}) {
    EXPECT_FALSE(weight_type_of_ggml(id).has_value()) << id;
  }
}

// Bit for bit: gguf multiplies in the order that the header fixes.
TEST(WeightTypesTest, DequantizeMatchesGguf) {
  for (const auto& entry : golden()) {
    const std::string name = entry["type"];
    // An odd address: files give no alignment.
    std::vector<std::byte> source = bytes_of_hex(entry["blocks"]);
    source.insert(source.begin(), std::byte{0});
    const std::vector<float> expected = floats_of_hex(entry["values"]);
    std::vector<float> actual(expected.size() + 1, -1234.5f);
    const auto type = weight_type_of_ggml(entry["ggml_id"]);
    ASSERT_TRUE(type.has_value()) << name;
    dequantize(*type, source.data() + 1, actual.data(), static_cast<int64_t>(expected.size()));
    for (size_t i = 0; i < expected.size(); ++i) {
      // + 0.0f: a zero may have either sign.
      ASSERT_EQ(std::bit_cast<uint32_t>(actual[i] + 0.0f),
                std::bit_cast<uint32_t>(expected[i] + 0.0f))
          << name << " value " << i << ": " << actual[i] << " vs " << expected[i];
    }
    EXPECT_EQ(actual.back(), -1234.5f) << name << " wrote past the end";
  }
}

TEST(WeightTypesTest, UnpackedBlocksKeepTheirBounds) {
  for (const auto& entry : golden()) {
    const auto type = weight_type_of_ggml(entry["ggml_id"]);
    if (info(*type).block_values == 1) {
      continue;
    }
    const std::vector<std::byte> source = bytes_of_hex(entry["blocks"]);
    UnpackedBlock block;
    unpack_block(*type, source.data(), block);
    EXPECT_EQ(block.values, info(*type).block_values);
    EXPECT_TRUE(block.sub == 16 || block.sub == 32);
    EXPECT_TRUE(!block.has_minimum || block.offset == 0) << info(*type).name;
    const int bound = *type == WeightType::kQ8_0 ? 256 : 64;
    for (int i = 0; i < block.values; ++i) {
      ASSERT_LT(block.quant[i], bound) << info(*type).name;
    }
  }
}

}  // namespace
}  // namespace pagezip
