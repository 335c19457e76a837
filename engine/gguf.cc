// A value is found once, when the file is opened, and read again whenever it is asked for, by the
// same bounds-checked Reader: a file that changes under the mapping can then give wrong values, but
// no access outside of it.

#include "engine/gguf.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <numeric>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/math.h"

namespace pagezip {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF is read in place");

enum GgufType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};
constexpr uint32_t kTypes = 13;

// Far above what any real file has; a count beyond them is a lie or an attack.
constexpr uint64_t kMaxKeys = 65536;
constexpr uint64_t kMaxTensors = 65536;
constexpr uint64_t kMaxName = 256;
constexpr uint64_t kMaxAlignment = 65536;
constexpr uint64_t kDefaultAlignment = 32;

// The fewest bytes that one entry can take: what a count is checked against.
constexpr uint64_t kMinKeyBytes = 8 + 1 + 4 + 1;
constexpr uint64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;

/// Bytes of a number of that type; 0 for strings and arrays.
size_t number_bytes(uint32_t type) {
  constexpr size_t kBytes[kTypes] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return kBytes[type];
}

bool is_integer(uint32_t type) { return type <= kI32 || type == kU64 || type == kI64; }

// Tensor types that exist but that we do not support, so that the error can name them.
constexpr std::pair<uint32_t, std::string_view> kUnsupportedTypes[] = {
    {9, "Q8_1"},   {15, "Q8_K"},   {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"},
    {19, "IQ1_S"}, {20, "IQ4_NL"}, {21, "IQ3_S"},   {22, "IQ2_S"},  {23, "IQ4_XS"},
    {24, "I8"},    {25, "I16"},    {26, "I32"},     {27, "I64"},    {28, "F64"},
    {29, "IQ1_M"}, {34, "TQ1_0"},  {35, "TQ2_0"},   {39, "MXFP4"},
};

/// "39 (MXFP4)", or only the number where we know no name.
std::string describe_type(uint32_t ggml_id) {
  for (const auto& [id, name] : kUnsupportedTypes) {
    if (id == ggml_id) return fmt::format("{} ({})", id, name);
  }
  return std::to_string(ggml_id);
}

bool is_valid_name(std::string_view name) {
  return !name.empty() &&
         std::all_of(name.begin(), name.end(), [](char c) { return c >= 0x20 && c < 0x7f; });
}

std::string system_error(int code) { return std::generic_category().message(code); }

}  // namespace

/// A cursor over the file that throws instead of leaving it. Borrows the GgufFile.
class GgufFile::Reader {
 public:
  Reader(const GgufFile& file, size_t position) : file_(file), position_(position) {}

  size_t position() const { return position_; }
  uint64_t bytes_left() const { return file_.size_ - position_; }

  template <typename T>
  T number(std::string_view what) {
    T value;
    std::memcpy(&value, take(sizeof(T), what), sizeof(T));
    return value;
  }
  std::string_view string(std::string_view what) {
    const auto length = number<uint64_t>(what);
    return {reinterpret_cast<const char*>(take(length, what)), length};
  }
  std::string name(std::string_view what) {
    const auto length = number<uint64_t>(what);
    if (length > kMaxName) file_.fail(fmt::format("a {} of {} bytes is too long", what, length));
    std::string name(reinterpret_cast<const char*>(take(length, what)), length);
    if (!is_valid_name(name)) {
      file_.fail(fmt::format("a {} is empty or has unprintable characters", what));
    }
    return name;
  }
  void skip(uint64_t bytes, std::string_view what) { take(bytes, what); }

  /// REQUIRES: an integer type.
  __int128 integer(uint32_t type, std::string_view what) {
    switch (type) {
      case kU8:
        return number<uint8_t>(what);
      case kI8:
        return number<int8_t>(what);
      case kU16:
        return number<uint16_t>(what);
      case kI16:
        return number<int16_t>(what);
      case kU32:
        return number<uint32_t>(what);
      case kI32:
        return number<int32_t>(what);
      case kU64:
        return number<uint64_t>(what);
      default:
        return number<int64_t>(what);
    }
  }
  /// REQUIRES: F32 or F64.
  double real(uint32_t type, std::string_view what) {
    return type == kF32 ? static_cast<double>(number<float>(what)) : number<double>(what);
  }

 private:
  const std::byte* take(uint64_t bytes, std::string_view what) {
    if (bytes > bytes_left()) {
      file_.fail(fmt::format("the file ends inside {} (wanted {} bytes at offset {} of {})", what,
                             bytes, position_, file_.size_));
    }
    const std::byte* start = file_.data_.get() + position_;
    position_ += bytes;
    return start;
  }

  const GgufFile& file_;
  size_t position_;
};

GgufFile::GgufFile(std::shared_ptr<const std::byte> data, size_t size, std::string path)
    : data_(std::move(data)), size_(size), path_(std::move(path)) {
  parse();
}

GgufFile GgufFile::open(const std::string& path) {
  const auto fail = [&path](const std::string& what) {
    throw Error(ErrorKind::kModelFile, path + ": " + what);
  };
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) fail("cannot open: " + system_error(errno));
  struct stat status {};
  void* address = MAP_FAILED;
  std::string problem;
  if (::fstat(descriptor, &status) != 0) {
    problem = "cannot read: " + system_error(errno);
  } else if (!S_ISREG(status.st_mode)) {
    problem = "not a regular file";
  } else if (status.st_size == 0) {
    problem = "the file is empty";
  } else {
    address =
        ::mmap(nullptr, static_cast<size_t>(status.st_size), PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (address == MAP_FAILED) problem = "cannot map: " + system_error(errno);
  }
  ::close(descriptor);
  if (!problem.empty()) fail(problem);
  const auto size = static_cast<size_t>(status.st_size);
  std::shared_ptr<const std::byte> data(
      static_cast<const std::byte*>(address),
      [size](const std::byte* start) { ::munmap(const_cast<std::byte*>(start), size); });
  return GgufFile(std::move(data), size, path);
}

GgufFile GgufFile::from_bytes(std::vector<std::byte> bytes, std::string name) {
  const auto owner = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
  return GgufFile(std::shared_ptr<const std::byte>(owner, owner->data()), owner->size(),
                  std::move(name));
}

void GgufFile::fail(const std::string& what) const {
  throw Error(ErrorKind::kModelFile, path_ + ": " + what);
}

GgufFile::Reader GgufFile::reader_at(size_t offset) const { return Reader(*this, offset); }

void GgufFile::parse() {
  Reader reader = reader_at(0);
  if (size_ < 4 || std::memcmp(data_.get(), "GGUF", 4) != 0) fail("not a GGUF file");
  reader.skip(4, "the magic number");
  const auto version = reader.number<uint32_t>("the version");
  if (version == 0x02000000 || version == 0x03000000) fail("big-endian files are not supported");
  if (version != 2 && version != 3) {
    fail(fmt::format("GGUF version {} is not supported (only 2 and 3)", version));
  }
  const auto tensor_count = reader.number<uint64_t>("the tensor count");
  const auto key_count = reader.number<uint64_t>("the key count");
  if (key_count > kMaxKeys || key_count > reader.bytes_left() / kMinKeyBytes) {
    fail(fmt::format("impossible number of metadata keys: {}", key_count));
  }
  read_metadata(reader, key_count);
  if (tensor_count > kMaxTensors || tensor_count > reader.bytes_left() / kMinTensorBytes) {
    fail(fmt::format("impossible number of tensors: {}", tensor_count));
  }
  read_tensors(reader, tensor_count);
}

void GgufFile::read_metadata(Reader& reader, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    const std::string key = reader.name("metadata key");
    const std::string what = fmt::format("metadata key '{}'", key);
    Value value{reader.number<uint32_t>(what), false, 1, 0};
    if (value.type == kArray) {
      value = {reader.number<uint32_t>(what), true, reader.number<uint64_t>(what), 0};
      if (value.type == kArray) fail(what + " is an array of arrays, which is not supported");
    }
    if (value.type >= kTypes) fail(fmt::format("{} has unknown type {}", what, value.type));
    value.payload_offset = reader.position();
    const size_t width = number_bytes(value.type);
    const size_t smallest = width > 0 ? width : sizeof(uint64_t);
    if (value.count > reader.bytes_left() / smallest) {
      fail(fmt::format("the file ends inside {} ({} elements)", what, value.count));
    }
    if (value.type == kString) {
      for (uint64_t j = 0; j < value.count; ++j) reader.string(what);
    } else if (value.type == kBool) {
      for (uint64_t j = 0; j < value.count; ++j) {
        if (reader.number<uint8_t>(what) > 1) fail(what + " is a bool that is neither 0 nor 1");
      }
    } else {
      reader.skip(value.count * width, what);
    }
    if (!metadata_.emplace(key, value).second) fail(what + " appears twice");
  }
}

uint64_t GgufFile::alignment() const {
  const uint64_t alignment = get_uint("general.alignment").value_or(kDefaultAlignment);
  if (!std::has_single_bit(alignment) || alignment > kMaxAlignment) {
    fail(fmt::format("general.alignment is {}, not a power of two up to {}", alignment,
                     kMaxAlignment));
  }
  return alignment;
}

void GgufFile::read_tensors(Reader& reader, uint64_t count) {
  std::vector<uint64_t> offsets;  // from the start of the data section, [tensors]
  for (uint64_t i = 0; i < count; ++i) {
    GgufTensor tensor{reader.name("tensor name"), WeightType::kF32, {}, nullptr, 0};
    const std::string what = fmt::format("tensor '{}'", tensor.name);
    const auto dims = reader.number<uint32_t>(what);
    if (dims < 1 || dims > 4) fail(fmt::format("{} has {} dimensions, not 1 to 4", what, dims));
    int64_t values = 1;
    for (uint32_t d = 0; d < dims; ++d) {
      const auto size = reader.number<uint64_t>(what);
      if (size == 0 || size > std::numeric_limits<int64_t>::max() ||
          __builtin_mul_overflow(values, static_cast<int64_t>(size), &values)) {
        fail(fmt::format("{} has an impossible shape (size {} is {})", what, d, size));
      }
      tensor.shape.push_back(static_cast<int64_t>(size));
    }
    const auto ggml_id = reader.number<uint32_t>(what);
    const std::optional<WeightType> type = weight_type_of_ggml(ggml_id);
    if (!type) {
      fail(fmt::format("{} has type {}, which is not supported", what, describe_type(ggml_id)));
    }
    tensor.type = *type;
    const WeightTypeInfo& layout = info(*type);
    if (tensor.shape[0] % layout.block_values != 0) {
      fail(fmt::format("{} of type {} has rows of {} values, not a multiple of {}", what,
                       layout.name, tensor.shape[0], layout.block_values));
    }
    if (__builtin_mul_overflow(values / layout.block_values, int64_t{layout.block_bytes},
                               &tensor.bytes)) {
      fail(what + " has an impossible shape (too many bytes)");
    }
    offsets.push_back(reader.number<uint64_t>(what));
    if (!tensor_index_.emplace(tensor.name, tensors_.size()).second) fail(what + " appears twice");
    tensors_.push_back(std::move(tensor));
  }
  place_tensors(reader.position(), offsets);
}

void GgufFile::place_tensors(size_t directory_end, std::span<const uint64_t> offsets) {
  const uint64_t align = alignment();
  const uint64_t start = round_up(directory_end, align);
  for (size_t i = 0; i < tensors_.size(); ++i) {
    GgufTensor& tensor = tensors_[i];
    if (offsets[i] % align != 0) {
      fail(fmt::format("tensor '{}' lies at offset {}, not a multiple of {}", tensor.name,
                       offsets[i], align));
    }
    const auto bytes = static_cast<uint64_t>(tensor.bytes);
    if (start > size_ || offsets[i] > size_ - start || bytes > size_ - start - offsets[i]) {
      fail(fmt::format("tensor '{}' ({} bytes at offset {}) reaches past the end of the file",
                       tensor.name, bytes, offsets[i]));
    }
    tensor.data = data_.get() + start + offsets[i];
  }
  std::vector<size_t> order(tensors_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [this](size_t a, size_t b) { return tensors_[a].data < tensors_[b].data; });
  for (size_t i = 1; i < order.size(); ++i) {
    const GgufTensor& before = tensors_[order[i - 1]];
    const GgufTensor& after = tensors_[order[i]];
    if (before.data + before.bytes > after.data) {
      fail(fmt::format("tensors '{}' and '{}' overlap", before.name, after.name));
    }
  }
}

const GgufTensor* GgufFile::find(std::string_view name) const {
  const auto found = tensor_index_.find(name);
  return found == tensor_index_.end() ? nullptr : &tensors_[found->second];
}

const GgufFile::Value* GgufFile::value_of(std::string_view key, bool is_array) const {
  const auto found = metadata_.find(key);
  if (found == metadata_.end()) return nullptr;
  if (found->second.is_array != is_array) {
    fail(fmt::format("metadata key '{}' {} an array", key, is_array ? "is not" : "is"));
  }
  return &found->second;
}

namespace {

template <typename T>
std::optional<T> in_range(__int128 value) {
  if (value < std::numeric_limits<T>::min() || value > std::numeric_limits<T>::max()) return {};
  return static_cast<T>(value);
}

}  // namespace

std::optional<uint64_t> GgufFile::get_uint(std::string_view key) const {
  const Value* value = value_of(key, false);
  if (!value) return {};
  if (!is_integer(value->type)) fail(fmt::format("metadata key '{}' is not an integer", key));
  const auto number =
      in_range<uint64_t>(reader_at(value->payload_offset).integer(value->type, key));
  if (!number) fail(fmt::format("metadata key '{}' is negative", key));
  return number;
}

std::optional<int64_t> GgufFile::get_int(std::string_view key) const {
  const Value* value = value_of(key, false);
  if (!value) return {};
  if (!is_integer(value->type)) fail(fmt::format("metadata key '{}' is not an integer", key));
  const auto number = in_range<int64_t>(reader_at(value->payload_offset).integer(value->type, key));
  if (!number) fail(fmt::format("metadata key '{}' is too large", key));
  return number;
}

std::optional<double> GgufFile::get_float(std::string_view key) const {
  const Value* value = value_of(key, false);
  if (!value) return {};
  if (value->type != kF32 && value->type != kF64) {
    fail(fmt::format("metadata key '{}' is not a floating-point number", key));
  }
  return reader_at(value->payload_offset).real(value->type, key);
}

std::optional<bool> GgufFile::get_bool(std::string_view key) const {
  const Value* value = value_of(key, false);
  if (!value) return {};
  if (value->type != kBool) fail(fmt::format("metadata key '{}' is not a bool", key));
  return reader_at(value->payload_offset).number<uint8_t>(key) != 0;
}

std::optional<std::string_view> GgufFile::get_string(std::string_view key) const {
  const Value* value = value_of(key, false);
  if (!value) return {};
  if (value->type != kString) fail(fmt::format("metadata key '{}' is not a string", key));
  return reader_at(value->payload_offset).string(key);
}

std::optional<std::vector<std::string_view>> GgufFile::get_strings(std::string_view key) const {
  const Value* value = value_of(key, true);
  if (!value) return {};
  if (value->type != kString)
    fail(fmt::format("metadata key '{}' is not an array of strings", key));
  Reader reader = reader_at(value->payload_offset);
  std::vector<std::string_view> strings(value->count);
  for (std::string_view& string : strings) string = reader.string(key);
  return strings;
}

std::optional<std::vector<float>> GgufFile::get_floats(std::string_view key) const {
  const Value* value = value_of(key, true);
  if (!value) return {};
  if (value->type != kF32 && value->type != kF64) {
    fail(fmt::format("metadata key '{}' is not an array of floating-point numbers", key));
  }
  Reader reader = reader_at(value->payload_offset);
  std::vector<float> numbers(value->count);
  for (float& number : numbers) number = static_cast<float>(reader.real(value->type, key));
  return numbers;
}

std::optional<std::vector<int64_t>> GgufFile::get_ints(std::string_view key) const {
  const Value* value = value_of(key, true);
  if (!value) return {};
  if (!is_integer(value->type)) {
    fail(fmt::format("metadata key '{}' is not an array of integers", key));
  }
  Reader reader = reader_at(value->payload_offset);
  std::vector<int64_t> numbers(value->count);
  for (int64_t& number : numbers) {
    const auto converted = in_range<int64_t>(reader.integer(value->type, key));
    if (!converted) fail(fmt::format("metadata key '{}' has an element that is too large", key));
    number = *converted;
  }
  return numbers;
}

}  // namespace pagezip
