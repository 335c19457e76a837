// Reads GGUF model files (versions 2 and 3, little-endian): metadata and tensor directory.
//
// The file is untrusted. Everything in it is checked when it is opened: a file that lies about its
// sizes, counts, offsets, types or strings ends in one Error(kModelFile), "PATH: what is wrong".
// Nothing is allocated in proportion to a number of the file before that number was compared with
// the bytes that are left. Non-goals: split files, big-endian files, writing.
//
// Thread rule: const methods from any thread. A copy shares the mapping of its source.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/weight_types.h"

namespace pagezip {

struct GgufTensor {
  std::string name;
  WeightType type;
  std::vector<int64_t> shape;  // ggml order, 1 to 4 sizes: shape[0] is the row length
  const std::byte* data;       // `bytes` bytes inside the mapping, valid while a GgufFile lives
  int64_t bytes;
};

class GgufFile {
 public:
  /// Maps the file read-only and checks it. Throws Error(kModelFile).
  static GgufFile open(const std::string& path);
  /// The same for a file that is already in memory; `name` stands for the path in errors.
  static GgufFile from_bytes(std::vector<std::byte> bytes, std::string name);

  const std::string& path() const { return path_; }
  /// In the order of the file; no two share a name or a byte.
  std::span<const GgufTensor> tensors() const { return tensors_; }
  /// Null if there is none.
  const GgufTensor* find(std::string_view name) const;

  // Metadata. A missing key is nothing; a key of another kind than asked for is an Error that names
  // it. Integers of any width and sign convert where the value is in range. Views point into the
  // mapping.
  std::optional<uint64_t> get_uint(std::string_view key) const;
  std::optional<int64_t> get_int(std::string_view key) const;
  std::optional<double> get_float(std::string_view key) const;
  std::optional<bool> get_bool(std::string_view key) const;
  std::optional<std::string_view> get_string(std::string_view key) const;
  std::optional<std::vector<std::string_view>> get_strings(std::string_view key) const;
  std::optional<std::vector<float>> get_floats(std::string_view key) const;
  std::optional<std::vector<int64_t>> get_ints(std::string_view key) const;

 private:
  class Reader;
  struct Value {
    uint32_t type;          // of the value, or of the elements of an array
    bool is_array;          // arrays of arrays are refused
    uint64_t count;         // elements of an array
    size_t payload_offset;  // from the start of the file
  };

  GgufFile(std::shared_ptr<const std::byte> data, size_t size, std::string path);
  void parse();
  void read_metadata(Reader& reader, uint64_t count);
  void read_tensors(Reader& reader, uint64_t count);
  void place_tensors(size_t directory_end, std::span<const uint64_t> offsets);
  uint64_t alignment() const;
  const Value* value_of(std::string_view key, bool is_array) const;
  Reader reader_at(size_t offset) const;
  [[noreturn]] void fail(const std::string& what) const;

  std::shared_ptr<const std::byte> data_;
  size_t size_;  // bytes of the file
  std::string path_;
  std::map<std::string, Value, std::less<>> metadata_;
  std::vector<GgufTensor> tensors_;
  std::map<std::string, size_t, std::less<>> tensor_index_;  // name -> index in tensors_
};

}  // namespace pagezip
