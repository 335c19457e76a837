#include "kernels/cpu/dense.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "base/math.h"
#include "kernels/cpu/dense_select.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/simd.h"
#include "kernels/half.h"

namespace pagezip::cpu {
namespace {

constexpr int64_t kPanel = 16;       // outputs of a quantised panel
constexpr int64_t kFloatPanel = 64;  // outputs of a float panel

// The form of a weight's quantised panels; nothing where it has float panels.
std::optional<PanelFormat> quantised_format(const Weight& weight, ActivationType activations) {
  return activations == ActivationType::kQ8 ? panel_format(weight.type) : std::nullopt;
}

DenseIsa& chosen_isa() {
  static DenseIsa isa = best_dense_isa();
  return isa;
}

PanelFunction panel_function(const PanelFormat& format) {
  switch (chosen_isa()) {
    case DenseIsa::kAvx512Vnni:
      return panel_function_avx512(format);
    case DenseIsa::kAvx2:
      return panel_function_avx2(format);
    case DenseIsa::kPortable:
      return panel_function_portable(format);
  }
  return nullptr;
}

// ---- packing ----

void store_f16(std::byte* p, int64_t lane, float value) {
  const uint16_t half = float_to_f16(value);
  std::memcpy(p + 2 * lane, &half, 2);
}

// Writes 32 quants of one output row (lane) into a block's low and high parts.
void store_quants(const PanelFormat& format, const uint8_t* quants, int lane, std::byte* block) {
  auto* bytes = reinterpret_cast<uint8_t*>(block);
  for (int i = 0; i < 32; ++i) {
    const int vector = i / 4;
    const int byte = 4 * lane + i % 4;  // within the vector
    if (format.bits == 8) {
      bytes[64 * vector + byte] = quants[i];
      continue;
    }
    bytes[64 * (vector % 4) + byte] |=
        static_cast<uint8_t>((quants[i] & 15) << (vector < 4 ? 0 : 4));
    if (format.bits == 5) {
      bytes[256 + 8 * vector + byte / 8] |=
          static_cast<uint8_t>((quants[i] >> 4 & 1) << (byte % 8));
    } else if (format.bits == 6) {
      bytes[256 + 64 * (vector / 4) + byte] |=
          static_cast<uint8_t>((quants[i] >> 4) << (2 * (vector % 4)));
    }
  }
}

// One chunk (32 or 256 columns) of one output row.
void pack_chunk(const PanelFormat& format, const UnpackedBlock& block, int lane, std::byte* chunk) {
  store_f16(chunk, lane, block.d);
  chunk += 32;
  if (format.has_minimum) {
    store_f16(chunk, lane, block.dmin);
    chunk += 32;
  }
  const int scales = 32 / format.sub;
  for (int64_t b = 0; b < block.values / 32; ++b) {
    store_quants(format, block.quant + 32 * b, lane, chunk);
    if (format.has_sub_scales) {
      std::byte* sub_scales = chunk + format.block_bytes() - format.sub_scale_bytes();
      for (int s = 0; s < scales; ++s) {
        sub_scales[16 * s + lane] = static_cast<std::byte>(block.scale_int[b * scales + s]);
        if (format.has_minimum) {
          sub_scales[16 * (scales + s) + lane] =
              static_cast<std::byte>(block.minimum_int[b * scales + s]);
        }
      }
    }
    chunk += format.block_bytes();
  }
}

void pack_quantised(Weight& weight, const PanelFormat& format, ThreadPool& pool) {
  const int64_t chunks = weight.cols / format.chunk_columns();
  const int64_t panels = ceil_div(weight.rows, kPanel);
  const int64_t panel_bytes = chunks * format.chunk_bytes();
  const int64_t source_row = row_bytes(weight.type, weight.cols);
  weight.packed = AlignedBytes(static_cast<size_t>(panels * panel_bytes));
  pool.parallel_for(panels, [&](int64_t panel, int) {
    UnpackedBlock block{};
    for (int lane = 0; lane < kPanel && panel * kPanel + lane < weight.rows; ++lane) {
      const std::byte* source = weight.source + (panel * kPanel + lane) * source_row;
      for (int64_t c = 0; c < chunks; ++c) {
        unpack_block(weight.type, source + c * info(weight.type).block_bytes, block);
        pack_chunk(format, block, lane,
                   weight.packed.data() + panel * panel_bytes + c * format.chunk_bytes());
      }
    }
  });
}

void pack_float(Weight& weight, ThreadPool& pool) {
  const int64_t panels = ceil_div(weight.rows, kFloatPanel);
  const int64_t source_row = row_bytes(weight.type, weight.cols);
  weight.packed =
      AlignedBytes(static_cast<size_t>(panels * kFloatPanel * weight.cols) * sizeof(float));
  auto* packed = reinterpret_cast<float*>(weight.packed.data());
  pool.parallel_for(panels, [&](int64_t panel, int thread) {
    auto* row = reinterpret_cast<float*>(
        pool.scratch(thread, static_cast<size_t>(weight.cols) * sizeof(float)));
    for (int64_t lane = 0; lane < kFloatPanel && panel * kFloatPanel + lane < weight.rows; ++lane) {
      dequantize(weight.type, weight.source + (panel * kFloatPanel + lane) * source_row, row,
                 weight.cols);
      for (int64_t c = 0; c < weight.cols; ++c) {
        packed[(panel * weight.cols + c) * kFloatPanel + lane] = row[c];
      }
    }
  });
}

// ---- products ----

// Outputs [first, first + count) of one target, for rows [row, row + rows).
struct Work {
  const MatmulTarget* target;
  int64_t first;
  int64_t count;
};

// Copies a buffer [rows, width] to the target's columns, adding the bias.
void write_out(const Work& work, const float* buffer, int64_t width, int64_t row, int64_t rows) {
  for (int64_t r = 0; r < rows; ++r) {
    float* out = work.target->out.row(row + r) + work.first;
    const float* in = buffer + r * width;
    if (work.target->bias == nullptr) {
      std::memcpy(out, in, static_cast<size_t>(work.count) * sizeof(float));
    } else {
      const float* bias = work.target->bias + work.first;
      for (int64_t i = 0; i < work.count; ++i) {
        out[i] = in[i] + bias[i];
      }
    }
  }
}

void multiply_float(const Work& work, const Activations& x, int thread, ThreadPool& pool) {
  const int64_t cols = work.target->weight->cols;
  const auto* packed = reinterpret_cast<const float*>(work.target->weight->packed.data());
  const int64_t tile = std::min(kRowTile, x.values.rows);
  auto* buffer = reinterpret_cast<float*>(
      pool.scratch(thread, static_cast<size_t>(tile * kFloatPanel) * sizeof(float)));
  for (int64_t row = 0; row < x.values.rows; row += tile) {
    const int64_t rows = std::min(tile, x.values.rows - row);
    for (int64_t first = work.first; first < work.first + work.count; first += kFloatPanel) {
      simd_ops().gemm(x.values.row(row), x.values.stride, packed + first * cols, kFloatPanel,
                      buffer, kFloatPanel, rows, cols, kFloatPanel, false);
      const int64_t count = std::min(kFloatPanel, work.target->weight->rows - first);
      write_out({work.target, first, count}, buffer, kFloatPanel, row, rows);
    }
  }
}

// What a format adds to the scales and sums of a tile: see PanelArgs.
void fill_offset_sums(const PanelFormat& format, const int32_t* sums, int64_t groups, int64_t rows,
                      int32_t* offset_sums) {
  const int64_t halves = format.sub / 16;
  for (int64_t g = 0; g < groups; ++g) {
    const int32_t* first = sums + g * halves * rows;
    const int32_t* second = halves == 2 ? first + rows : nullptr;
    for (int64_t r = 0; r < rows; ++r) {
      offset_sums[g * rows + r] = -format.offset * (first[r] + (second == nullptr ? 0 : second[r]));
    }
  }
}

void fill_scaled_sums(const PanelFormat& format, const float* scales, const int32_t* sums,
                      int64_t groups, int64_t rows, float* scaled_sums) {
  const int64_t halves = format.sub / 16;
  for (int64_t g = 0; g < groups; ++g) {
    const int32_t* first = sums + g * halves * rows;
    const int32_t* second = halves == 2 ? first + rows : nullptr;
    const float* scale = scales + g * format.sub / 32 * rows;
    for (int64_t r = 0; r < rows; ++r) {
      scaled_sums[g * rows + r] =
          scale[r] * static_cast<float>(first[r] + (second == nullptr ? 0 : second[r]));
    }
  }
}

// Panels [work.first / 16, + panels) against all rows.
void multiply_quantised(const Work& work, const PanelFormat& format, const Activations& x,
                        int thread, ThreadPool& pool) {
  const Weight& weight = *work.target->weight;
  const PanelFunction function = panel_function(format);
  const int64_t chunks = weight.cols / format.chunk_columns();
  const int64_t groups = x.blocks * 32 / format.sub;
  const int64_t tile = std::min(kRowTile, x.values.rows);
  auto* const out = reinterpret_cast<float*>(
      pool.scratch(thread, static_cast<size_t>(tile * (kPanel + groups)) * sizeof(float)));
  auto* const scaled_sums = out + tile * kPanel;
  auto* const offset_sums = reinterpret_cast<int32_t*>(scaled_sums);  // a format needs only one
  for (int64_t row = 0; row < x.values.rows; row += tile) {
    const int64_t rows = std::min(tile, x.values.rows - row);
    const float* scales = x.scales.data() + row * x.blocks;
    const int32_t* sums = x.sums.data() + 2 * row * x.blocks;
    if (format.has_minimum) {
      fill_scaled_sums(format, scales, sums, groups, rows, scaled_sums);
    } else {
      fill_offset_sums(format, sums, groups, rows, offset_sums);
    }
    for (int64_t first = work.first; first < work.first + work.count; first += kPanel) {
      const int64_t count = std::min(kPanel, weight.rows - first);
      // A whole panel without bias goes straight to its place.
      const bool direct = count == kPanel && work.target->bias == nullptr;
      const PanelArgs args{weight.packed.data() + first / kPanel * chunks * format.chunk_bytes(),
                           chunks,
                           rows,
                           x.q8.data() + row * x.blocks * 32,
                           scales,
                           offset_sums,
                           scaled_sums,
                           direct ? work.target->out.row(row) + first : out,
                           direct ? work.target->out.stride : kPanel};
      function(args, rows);
      if (!direct) {
        write_out({work.target, first, count}, out, kPanel, row, rows);
      }
    }
  }
}

}  // namespace

int PanelFormat::block_bytes() const {
  const int quants = bits == 8 ? 512 : bits == 6 ? 384 : bits == 5 ? 320 : 256;
  return quants + sub_scale_bytes();
}

int PanelFormat::sub_scale_bytes() const {
  return has_sub_scales ? 16 * (32 / sub) * (has_minimum ? 2 : 1) : 0;
}

int PanelFormat::chunk_bytes() const {
  return (has_minimum ? 64 : 32) + chunk_columns() / 32 * block_bytes();
}

std::optional<PanelFormat> panel_format(WeightType type) {
  switch (type) {
    case WeightType::kQ4_0:
      return PanelFormat{4, 32, 8, false, false};
    case WeightType::kQ4_1:
      return PanelFormat{4, 32, 0, true, false};
    case WeightType::kQ5_0:
      return PanelFormat{5, 32, 16, false, false};
    case WeightType::kQ5_1:
      return PanelFormat{5, 32, 0, true, false};
    case WeightType::kQ8_0:
      return PanelFormat{8, 32, 128, false, false};
    case WeightType::kQ2_K:
      return PanelFormat{4, 16, 0, true, true};
    case WeightType::kQ3_K:
      return PanelFormat{4, 16, 4, false, true};
    case WeightType::kQ4_K:
      return PanelFormat{4, 32, 0, true, true};
    case WeightType::kQ5_K:
      return PanelFormat{5, 32, 0, true, true};
    case WeightType::kQ6_K:
      return PanelFormat{6, 16, 32, false, true};
    default:
      return std::nullopt;
  }
}

DenseIsa best_dense_isa() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512vnni") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
      __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512dq") != 0) {
    return DenseIsa::kAvx512Vnni;
  }
  if (__builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0) {
    return DenseIsa::kAvx2;
  }
#endif
  return DenseIsa::kPortable;
}

void set_dense_isa(DenseIsa isa) { chosen_isa() = isa; }
DenseIsa dense_isa() { return chosen_isa(); }

void pack(Weight& weight, ActivationType activations, ThreadPool& pool) {
  if (const auto format = quantised_format(weight, activations)) {
    pack_quantised(weight, *format, pool);
  } else {
    pack_float(weight, pool);
  }
}

void prepare(MatrixView<const float> x, ActivationType activations, Activations& out,
             ThreadPool& pool) {
  out.values = x;
  out.blocks = x.cols / 32;
  if (activations == ActivationType::kF32 || x.cols % 32 != 0) {
    return;  // no quantised weight has such a row length
  }
  out.q8.resize(static_cast<size_t>(x.rows * x.cols));
  out.scales.resize(static_cast<size_t>(x.rows * out.blocks));
  out.sums.resize(static_cast<size_t>(2 * x.rows * out.blocks));
  const auto quantize_row = [&](int64_t r, int) {
    const int64_t tile = r / kRowTile * kRowTile;
    const int64_t rows = std::min(kRowTile, x.rows - tile);
    const int64_t block = tile * out.blocks + r - tile;
    simd_ops().quantize(x.row(r), out.q8.data() + 32 * block, out.scales.data() + block,
                        out.sums.data() + 2 * tile * out.blocks + r - tile, x.cols, rows);
  };
  for_rows(x.rows, x.cols, pool, quantize_row);
}

void matmul(const Activations& x, ActivationType activations, std::span<const MatmulTarget> targets,
            ThreadPool& pool) {
  if (x.values.rows == 0) {
    return;
  }
  // About eight items for each thread, whole panels, over all targets in one parallel region.
  int64_t outputs = 0;
  for (const MatmulTarget& target : targets) {
    CHECK_EQ(target.weight->cols, x.values.cols);
    outputs += target.weight->rows;
  }
  const int64_t per_item =
      round_up(std::max<int64_t>(outputs / (int64_t{8} * pool.threads()), 1), kFloatPanel);
  std::array<int64_t, kMatmulTargetsMax> ends{};
  CHECK_LE(targets.size(), ends.size());
  int64_t items = 0;
  for (size_t t = 0; t < targets.size(); ++t) {
    items += ceil_div(targets[t].weight->rows, per_item);
    ends[t] = items;
  }
  pool.parallel_for(items, [&](int64_t item, int thread) {
    const auto t = static_cast<size_t>(
        std::upper_bound(ends.begin(), ends.begin() + targets.size(), item) - ends.begin());
    const MatmulTarget& target = targets[t];
    const int64_t first = (item - (t == 0 ? 0 : ends[t - 1])) * per_item;
    const Work work{&target, first, std::min(per_item, target.weight->rows - first)};
    if (const auto format = quantised_format(*target.weight, activations)) {
      multiply_quantised(work, *format, x, thread, pool);
    } else {
      multiply_float(work, x, thread, pool);
    }
  });
}

}  // namespace pagezip::cpu
