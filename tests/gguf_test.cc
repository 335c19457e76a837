#include "engine/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "base/error.h"
#include "tests/gguf_writer.h"
#include "tests/temp_folder.h"

namespace pagezip {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr uint32_t kF32 = 0;  // ggml ids
constexpr uint32_t kQ4_K = 12;

std::vector<std::byte> filled(size_t bytes, uint8_t value) {
  return std::vector<std::byte>(bytes, std::byte{value});
}

GgufFile read(const GgufWriter& writer) { return GgufFile::from_bytes(writer.bytes(), "t.gguf"); }

/// The message of the Error that `action` ends with; empty if it ends well.
std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kModelFile);
    return error.what();
  }
  return "";
}

GgufWriter small_file() {
  GgufWriter writer;
  writer.add("general.architecture", "llama")
      .add("a.u8", uint8_t{200})
      .add("a.i8", int8_t{-3})
      .add("a.u16", uint16_t{60000})
      .add("a.i16", int16_t{-300})
      .add("a.u32", uint32_t{4000000000u})
      .add("a.i32", int32_t{-70000})
      .add("a.u64", std::numeric_limits<uint64_t>::max())
      .add("a.i64", int64_t{-5000000000})
      .add("a.f32", 0.5f)
      .add("a.f64", 0.1)
      .add("a.yes", true)
      .add("a.no", false)
      .add_array<std::string>("a.words", {"x", "", "two words"})
      .add_array<float>("a.floats", {1.5f, -2.0f})
      .add_array<int16_t>("a.shorts", {-1, 7})
      .add_array<uint32_t>("a.empty", {});
  writer.add_tensor("one", WeightType::kF32, {3, 2}, filled(24, 1));
  writer.add_tensor("two", WeightType::kQ4_K, {256, 2}, filled(288, 2));
  return writer;
}

TEST(Gguf, ReadsEveryKindOfMetadata) {
  const GgufFile file = read(small_file());
  EXPECT_EQ(file.get_string("general.architecture"), "llama");
  EXPECT_EQ(file.get_uint("a.u8"), 200u);
  EXPECT_EQ(file.get_int("a.i8"), -3);
  EXPECT_EQ(file.get_uint("a.u16"), 60000u);
  EXPECT_EQ(file.get_int("a.i16"), -300);
  EXPECT_EQ(file.get_int("a.u32"), 4000000000);
  EXPECT_EQ(file.get_int("a.i32"), -70000);
  EXPECT_EQ(file.get_uint("a.u64"), std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(file.get_int("a.i64"), -5000000000);
  EXPECT_EQ(file.get_float("a.f32"), 0.5);
  EXPECT_EQ(file.get_float("a.f64"), 0.1);
  EXPECT_EQ(file.get_bool("a.yes"), true);
  EXPECT_EQ(file.get_bool("a.no"), false);
  EXPECT_THAT(*file.get_strings("a.words"), ElementsAre("x", "", "two words"));
  EXPECT_THAT(*file.get_floats("a.floats"), ElementsAre(1.5f, -2.0f));
  EXPECT_THAT(*file.get_ints("a.shorts"), ElementsAre(-1, 7));
  EXPECT_TRUE(file.get_ints("a.empty")->empty());
}

TEST(Gguf, MissingKeysAreNothing) {
  const GgufFile file = read(small_file());
  EXPECT_FALSE(file.get_uint("none"));
  EXPECT_FALSE(file.get_int("none"));
  EXPECT_FALSE(file.get_float("none"));
  EXPECT_FALSE(file.get_bool("none"));
  EXPECT_FALSE(file.get_string("none"));
  EXPECT_FALSE(file.get_strings("none"));
  EXPECT_FALSE(file.get_floats("none"));
  EXPECT_FALSE(file.get_ints("none"));
}

TEST(Gguf, AKeyOfAnotherKindIsAnErrorThatNamesIt) {
  const GgufFile file = read(small_file());
  const std::vector<std::pair<std::string, std::function<void()>>> wrong = {
      {"a.f32", [&] { file.get_uint("a.f32"); }},
      {"a.i8", [&] { file.get_uint("a.i8"); }},
      {"a.u64", [&] { file.get_int("a.u64"); }},
      {"a.yes", [&] { file.get_int("a.yes"); }},
      {"a.u8", [&] { file.get_float("a.u8"); }},
      {"a.u8", [&] { file.get_bool("a.u8"); }},
      {"a.u8", [&] { file.get_string("a.u8"); }},
      {"a.words", [&] { file.get_string("a.words"); }},
      {"a.u8", [&] { file.get_ints("a.u8"); }},
      {"a.words", [&] { file.get_ints("a.words"); }},
      {"a.shorts", [&] { file.get_floats("a.shorts"); }},
      {"a.floats", [&] { file.get_strings("a.floats"); }},
  };
  for (const auto& [key, action] : wrong) {
    const std::string message = error_of(action);
    EXPECT_THAT(message, StartsWith("t.gguf: metadata key '" + key + "'"));
  }
}

TEST(Gguf, FindsTensors) {
  const GgufFile file = read(small_file());
  ASSERT_EQ(file.tensors().size(), 2u);
  EXPECT_EQ(file.find("three"), nullptr);
  const GgufTensor* one = file.find("one");
  ASSERT_NE(one, nullptr);
  EXPECT_EQ(one->type, WeightType::kF32);
  EXPECT_THAT(one->shape, ElementsAre(3, 2));
  EXPECT_EQ(one->bytes, 24);
  EXPECT_EQ(one->data[23], std::byte{1});
  const GgufTensor* two = file.find("two");
  ASSERT_NE(two, nullptr);
  EXPECT_EQ(two->bytes, 2 * 144);
  EXPECT_EQ(two->data[0], std::byte{2});
  EXPECT_EQ(two->data[287], std::byte{2});
}

TEST(Gguf, MapsAFileThatOutlivesTheObjectItWasOpenedWith) {
  const TempFolder folder;
  const std::string path = folder.path("small.gguf");
  small_file().write(path);
  const GgufFile copy = [&path] {
    const GgufFile file = GgufFile::open(path);
    return file;
  }();
  EXPECT_EQ(copy.find("two")->data[0], std::byte{2});
  EXPECT_EQ(copy.path(), path);
}

TEST(Gguf, SaysWhyAFileCannotBeOpened) {
  const TempFolder folder;
  const std::string missing = folder.path("there_is_no_such.gguf");
  EXPECT_THAT(error_of([&] { GgufFile::open(missing); }), HasSubstr("No such file"));
  EXPECT_THAT(error_of([] { GgufFile::open("/"); }), HasSubstr("not a regular file"));
  const std::string empty = folder.path("empty.gguf");
  std::ofstream(empty).close();
  EXPECT_THAT(error_of([&] { GgufFile::open(empty); }), HasSubstr("empty"));
}

TEST(Gguf, EveryTruncationIsAnError) {
  const std::vector<std::byte> bytes = small_file().bytes();
  for (size_t length = 0; length < bytes.size(); ++length) {
    const std::vector<std::byte> part(bytes.begin(), bytes.begin() + static_cast<long>(length));
    EXPECT_NE(error_of([&] { GgufFile::from_bytes(part, "t.gguf"); }), "") << length;
  }
}

/// Reads all there is, so that a sanitizer sees every access that an opened file allows.
uint64_t touch_everything(const GgufFile& file) {
  uint64_t sum = 0;
  for (const GgufTensor& tensor : file.tensors()) {
    for (int64_t i = 0; i < tensor.bytes; ++i) sum += static_cast<uint64_t>(tensor.data[i]);
  }
  error_of(
      [&] { sum += file.get_strings("a.words").value_or(std::vector<std::string_view>()).size(); });
  error_of([&] { sum += file.get_string("general.architecture").value_or("").size(); });
  error_of([&] { sum += file.get_ints("a.shorts").value_or(std::vector<int64_t>()).size(); });
  return sum;
}

TEST(Gguf, EveryFlippedByteOpensOrIsAnError) {
  const std::vector<std::byte> bytes = small_file().bytes();
  int opened = 0;
  int refused = 0;
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (const uint8_t mask : {0x01, 0x80, 0xff}) {
      std::vector<std::byte> broken = bytes;
      broken[at] ^= std::byte{mask};
      const std::string message = error_of([&] {
        touch_everything(GgufFile::from_bytes(broken, "t.gguf"));
        ++opened;
      });
      if (!message.empty()) {
        EXPECT_EQ(message.find('\n'), std::string::npos);
        ++refused;
      }
    }
  }
  EXPECT_GT(opened, 100);
  EXPECT_GT(refused, 500);
}

struct HostileCase {
  std::string message;  // part of the error
  GgufWriter writer;
};

/// The payload of an array: element type, claimed count, bytes.
std::vector<std::byte> array_payload(uint32_t type, uint64_t count, size_t bytes) {
  std::vector<std::byte> payload(12 + bytes);
  std::memcpy(payload.data(), &type, 4);
  std::memcpy(payload.data() + 4, &count, 8);
  return payload;
}

std::vector<HostileCase> hostile_metadata() {
  constexpr uint64_t kHuge = uint64_t{1} << 60;
  return {
      {"version 1", GgufWriter(1)},
      {"version 4", GgufWriter(4)},
      {"big-endian", GgufWriter(0x03000000)},
      {"number of metadata keys", GgufWriter().claim_counts(0, kHuge)},
      {"number of metadata keys", GgufWriter().add("k", 1).claim_counts(0, 70000)},
      {"number of tensors", GgufWriter().claim_counts(~uint64_t{0}, 0)},
      {"'k' appears twice", GgufWriter().add("k", 1).add("k", 2.0)},
      {"metadata key is empty", GgufWriter().add("", 1)},
      {"unprintable", GgufWriter().add("a\nb", 1)},
      {"300 bytes is too long", GgufWriter().add(std::string(300, 'k'), 1)},
      {"'k' has unknown type 13", GgufWriter().add_raw("k", 13, filled(8, 0))},
      {"'k' is a bool", GgufWriter().add_raw("k", 7, filled(1, 2))},
      {"inside metadata key 'k'", GgufWriter().add_raw("k", 8, filled(8, 0xff))},
      {"'k' is an array of arrays", GgufWriter().add_raw("k", 9, array_payload(9, 1, 64))},
      {"'k' has unknown type 99", GgufWriter().add_raw("k", 9, array_payload(99, 1, 64))},
      {"inside metadata key 'k'", GgufWriter().add_raw("k", 9, array_payload(8, kHuge, 64))},
      {"inside metadata key 'k'", GgufWriter().add_raw("k", 9, array_payload(4, kHuge, 64))},
      {"inside metadata key 'k'", GgufWriter().add_raw("k", 9, array_payload(10, ~0ull, 64))},
  };
}

std::vector<HostileCase> hostile_tensors() {
  constexpr int64_t kBig = int64_t{1} << 40;
  const auto with_alignment = [](auto value) {
    return GgufWriter().add("general.alignment", value);
  };
  const std::vector<std::byte> data = filled(144, 0);
  const auto one = [&data](uint32_t id, const std::vector<int64_t>& shape) {
    return GgufWriter().add_raw_tensor("t", id, shape, data);
  };
  const auto at = [&data](uint64_t offset) {
    return GgufWriter().add_tensor_at("t", kF32, {36}, offset, data);
  };
  return {
      {"general.alignment is 0", with_alignment(0)},
      {"general.alignment is 48", with_alignment(48)},
      {"general.alignment is 1099511627776", with_alignment(kBig)},
      {"'general.alignment' is not an integer", with_alignment("32")},
      {"0 dimensions", one(kF32, {})},
      {"5 dimensions", one(kF32, {1, 1, 1, 1, 1})},
      {"size 1 is 0", one(kF32, {4, 0})},
      {"size 0 is 18446744073709551615", one(kF32, {-1})},
      {"impossible shape", one(kF32, {kBig, kBig})},
      {"too many bytes", one(kF32, {kBig, 1 << 22})},
      {"type 16 (IQ2_XXS)", one(16, {256})},
      {"type 4, which", one(4, {256})},
      {"rows of 128 values, not a multiple of 256", one(kQ4_K, {128, 2})},
      {"past the end", one(kF32, {37})},
      {"past the end", at(32)},
      {"past the end", at(~uint64_t{0} - 31)},
      {"not a multiple of 32", at(4)},
      {"tensor name is empty", GgufWriter().add_raw_tensor("", kF32, {36}, data)},
      {"'t' appears twice", one(kF32, {36}).add_raw_tensor("t", kF32, {36}, data)},
      {"'t' and 'u' overlap", one(kF32, {36}).add_tensor_at("u", kF32, {1}, 128, data)},
  };
}

TEST(Gguf, HostileFilesEndInOneLineThatNamesTheProblem) {
  for (const auto& cases : {hostile_metadata(), hostile_tensors()}) {
    for (const HostileCase& hostile : cases) {
      const std::string message = error_of([&] { read(hostile.writer); });
      EXPECT_THAT(message, StartsWith("t.gguf: "));
      EXPECT_THAT(message, HasSubstr(hostile.message));
    }
  }
  EXPECT_THAT(error_of([] { GgufFile::from_bytes(filled(64, 0), "t.gguf"); }),
              HasSubstr("not a GGUF file"));
}

}  // namespace
}  // namespace pagezip
