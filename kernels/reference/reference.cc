#include "kernels/kernels.h"
#include "kernels/reference/operations.h"

namespace pagezip {

const Kernels& reference_kernels() {
  static constexpr Kernels kKernels{
      .name = "reference",
      .memory = &kHostMemory,
      .head_dim_max = 0,
      .pack = reference::pack,
      .embed = reference::embed,
      .prepare = reference::prepare,
      .matmul = reference::matmul,
      .rms_norm = reference::rms_norm,
      .rope = reference::rope,
      .gate = reference::gate,
      .add = reference::add,
      .store_kv = reference::store_kv,
      .attend = reference::attend,
      .score = reference::score,
      .attend_scratch = [](const AttendArgs&, int) -> size_t { return 0; },
      .score_scratch = [](const ScoreArgs&, int) -> size_t { return 0; },
      .copy_pairs = reference::copy_pairs,
  };
  return kKernels;
}

}  // namespace pagezip
