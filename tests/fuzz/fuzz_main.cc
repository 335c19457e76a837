// libFuzzer's entry of one target, which the build names.
#include "tests/fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  pagezip::fuzz::PAGEZIP_FUZZ_TARGET(std::as_bytes(std::span(data, size)));
  return 0;
}
