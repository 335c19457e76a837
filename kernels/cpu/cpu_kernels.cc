// The table of the CPU backend, and the choice of instruction sets with its self-test.
#include "kernels/cpu/cpu_kernels.h"

#include <cstdio>
#include <string>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/dense.h"
#include "kernels/cpu/kv_pages.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/self_test.h"
#include "kernels/cpu/simd.h"
#include "kernels/kernels.h"
#include "kernels/reference/operations.h"

namespace pagezip {
namespace cpu {
namespace {

void rms_norm(MatrixView<const float> x, const float* weight, float eps, MatrixView<float> out,
              ThreadPool& pool) {
  for_rows(x.rows, x.cols, pool,
           [&](int64_t r, int) { simd_ops().rms_norm(x.row(r), weight, eps, out.row(r), x.cols); });
}

void rope(MatrixView<float> x, int head_dim, RopeStyle style, MatrixView<const float> cos,
          MatrixView<const float> sin, ThreadPool& pool) {
  for_rows(x.rows, x.cols, pool, [&](int64_t r, int) {
    for (int64_t h = 0; h < x.cols; h += head_dim) {
      simd_ops().rope(x.row(r) + h, head_dim, style, cos.row(r), sin.row(r));
    }
  });
}

void gate(GateFunction function, MatrixView<float> gate, MatrixView<const float> up,
          ThreadPool& pool) {
  for_rows(gate.rows, 4 * gate.cols, pool,
           [&](int64_t r, int) { simd_ops().gate(function, gate.row(r), up.row(r), gate.cols); });
}

void add(MatrixView<float> x, MatrixView<const float> y, ThreadPool& pool) {
  for_rows(x.rows, x.cols, pool,
           [&](int64_t r, int) { simd_ops().add(x.row(r), y.row(r), x.cols); });
}

constexpr Kernels kTable = {
    .name = "cpu",
    .memory = &kHostMemory,
    .head_dim_max = 0,
    .pack = pack,
    .embed = reference::embed,
    .prepare = prepare,
    .matmul = matmul,
    .rms_norm = rms_norm,
    .rope = rope,
    .gate = gate,
    .add = add,
    .store_kv = store_kv,
    .attend = attend,
    .score = score,
    .attend_scratch = attend_scratch,
    .score_scratch = score_scratch,
    .copy_pairs = copy_pairs,
};

const char* name_of(DenseIsa isa) {
  switch (isa) {
    case DenseIsa::kAvx512Vnni:
      return "AVX512-VNNI";
    case DenseIsa::kAvx2:
      return "AVX2";
    case DenseIsa::kPortable:
      return "portable";
  }
  return "";
}

// Falls back until the self-test passes; the portable loops are the last resort.
void choose_dense_isa() {
  for (int isa = static_cast<int>(best_dense_isa()); isa > 0; --isa) {
    set_dense_isa(static_cast<DenseIsa>(isa));
    if (dense_self_test()) {
      return;
    }
    std::fprintf(stderr, "warning: the %s kernels fail their self-test on this machine: not used\n",
                 name_of(dense_isa()));
  }
  set_dense_isa(DenseIsa::kPortable);
}

void choose_simd_level() {
  for (int level = static_cast<int>(best_simd_level()); level > 0; --level) {
    use_simd_level(static_cast<SimdLevel>(level));
    if (float_self_test()) {
      return;
    }
    std::fprintf(stderr, "warning: the %s kernels fail their self-test on this machine: not used\n",
                 simd_ops().isa);
  }
  use_simd_level(SimdLevel::kBaseline);
}

}  // namespace

const Kernels& cpu_table() { return kTable; }

}  // namespace cpu

const Kernels& cpu_kernels() {
  static const bool kChosen = [] {
    cpu::choose_simd_level();
    cpu::choose_dense_isa();
    return true;
  }();
  (void)kChosen;
  return cpu::kTable;
}

std::string cpu_kernels_isa() {
  cpu_kernels();
  return std::string(cpu::simd_ops().isa) + " float, " + cpu::name_of(cpu::dense_isa()) + " int8";
}

}  // namespace pagezip
