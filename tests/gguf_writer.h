// Builds GGUF files in memory, for tests that need a small model or a broken one.
//
//   GgufWriter writer;
//   writer.add("general.architecture", "llama").add("llama.block_count", uint32_t{2});
//   writer.add_tensor("output.weight", WeightType::kF32, {4, 8}, bytes);
//   GgufFile file = GgufFile::from_bytes(writer.bytes(), "tiny.gguf");
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/math.h"
#include "kernels/weight_types.h"

namespace pagezip {

class GgufWriter {
 public:
  explicit GgufWriter(uint32_t version = 3, uint64_t alignment = 32)
      : version_(version), alignment_(alignment) {}

  /// A number or a bool; its C++ type is its type in the file.
  template <typename T>
  requires std::is_arithmetic_v<T> GgufWriter& add(std::string_view key, T value) {
    start_key(key, type_of<T>());
    append(metadata_, value);
    return *this;
  }
  GgufWriter& add(std::string_view key, std::string_view value) {
    start_key(key, 8);
    append_string(metadata_, value);
    return *this;
  }
  GgufWriter& add(std::string_view key, const char* value) {
    return add(key, std::string_view(value));
  }
  /// An array of numbers or of strings.
  template <typename T>
  GgufWriter& add_array(std::string_view key, const std::vector<T>& values) {
    start_key(key, 9);
    if constexpr (std::is_arithmetic_v<T>) {
      append(metadata_, type_of<T>());
    } else {
      append(metadata_, uint32_t{8});
    }
    append(metadata_, static_cast<uint64_t>(values.size()));
    for (const auto& value : values) {
      if constexpr (std::is_arithmetic_v<T>) {
        append(metadata_, value);
      } else {
        append_string(metadata_, value);
      }
    }
    return *this;
  }
  /// A key whose type number and payload are the caller's, right or wrong.
  GgufWriter& add_raw(std::string_view key, uint32_t type, std::span<const std::byte> payload) {
    start_key(key, type);
    append(metadata_, payload);
    return *this;
  }
  /// `shape` in ggml order. Nothing is checked: the file may be as wrong as the test wants.
  GgufWriter& add_tensor(std::string_view name, WeightType type, const std::vector<int64_t>& shape,
                         std::span<const std::byte> data) {
    return add_raw_tensor(name, info(type).ggml_id, shape, data);
  }
  GgufWriter& add_raw_tensor(std::string_view name, uint32_t ggml_id,
                             const std::vector<int64_t>& shape, std::span<const std::byte> data) {
    data_.resize(round_up(data_.size(), alignment_));
    return add_tensor_at(name, ggml_id, shape, data_.size(), data);
  }
  /// Like add_raw_tensor, but the file says that the data lies at `offset`.
  GgufWriter& add_tensor_at(std::string_view name, uint32_t ggml_id,
                            const std::vector<int64_t>& shape, uint64_t offset,
                            std::span<const std::byte> data) {
    append_string(directory_, name);
    append(directory_, static_cast<uint32_t>(shape.size()));
    for (const int64_t size : shape) append(directory_, size);
    append(directory_, ggml_id);
    append(directory_, offset);
    data_.insert(data_.end(), data.begin(), data.end());
    ++tensor_count_;
    return *this;
  }
  /// The counts that the file claims, where they should not be the true ones.
  GgufWriter& claim_counts(uint64_t tensors, uint64_t keys) {
    tensor_count_ = tensors;
    key_count_ = keys;
    return *this;
  }

  std::vector<std::byte> bytes() const {
    std::vector<std::byte> file;
    append(file, std::string_view("GGUF"));
    append(file, version_);
    append(file, tensor_count_);
    append(file, key_count_);
    append(file, metadata_);
    append(file, directory_);
    file.resize(round_up(file.size(), alignment_));
    append(file, data_);
    return file;
  }
  void write(const std::string& path) const {
    const std::vector<std::byte> file = bytes();
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(file.data()),
               static_cast<std::streamsize>(file.size()));
  }

 private:
  template <typename T>
  static constexpr uint32_t type_of() {
    if constexpr (std::is_same_v<T, bool>) return 7;
    if constexpr (std::is_same_v<T, float>) return 6;
    if constexpr (std::is_same_v<T, double>) return 12;
    constexpr uint32_t kSignedness = std::is_signed_v<T> ? 1 : 0;
    if constexpr (sizeof(T) == 8) return 10 + kSignedness;
    return (sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 2 : 4) + kSignedness;
  }
  template <typename T>
  requires std::is_arithmetic_v<T>
  static void append(std::vector<std::byte>& target, T value) {
    append(target, std::as_bytes(std::span(&value, 1)));
  }
  static void append(std::vector<std::byte>& target, std::span<const std::byte> bytes) {
    for (const std::byte byte : bytes) target.push_back(byte);
  }
  static void append(std::vector<std::byte>& target, std::string_view text) {
    append(target, std::as_bytes(std::span(text)));
  }
  static void append_string(std::vector<std::byte>& target, std::string_view text) {
    append(target, static_cast<uint64_t>(text.size()));
    append(target, text);
  }
  void start_key(std::string_view key, uint32_t type) {
    append_string(metadata_, key);
    append(metadata_, type);
    ++key_count_;
  }

  uint32_t version_;
  uint64_t alignment_;
  uint64_t tensor_count_ = 0;
  uint64_t key_count_ = 0;
  std::vector<std::byte> metadata_;
  std::vector<std::byte> directory_;
  std::vector<std::byte> data_;
};

}  // namespace pagezip
