// Weights as the CPU backend holds them, and the loops that multiply them.
//
// Two packed forms. *Float panels*, for float weights and for exact float32 activations: 64 output
// rows side by side, [rows / 64][cols][64] float32. *Quantised panels*, for 8-bit activations: 16
// output rows side by side, their quants still 4, 5, 6 or 8 bits wide, as chunks along cols:
//
//   chunk (256 columns for the K types, else 32):
//     d     float16[16]                     one scale per output row
//     dmin  float16[16]                     only with minima
//     per 32 columns:
//       low   4-bit: 256 bytes; 8-bit: 512 bytes
//       high  5-bit: 64 bytes (8 masks of 64 bits); 6-bit: 128 bytes
//       scale int8[16], min uint8[16]       K types only; twice where a scale covers 16 columns
//
// A vector is 64 bytes: 16 outputs x 4 columns, the shape that the byte dot products want. Nibble
// vector v (0..3) holds vector v in its low and vector v + 4 in its high half. So every output is a
// lane, sums need no horizontal step, and the order of arithmetic is the same for every machine:
// int32 sums of a scale's columns are exact, then one multiply-add per scale in the order of cols.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/kernels.h"

namespace pagezip::cpu {

/// What distinguishes the quantised types once they are packed.
struct PanelFormat {
  int bits;    // 4, 5, 6 or 8 as stored
  int sub;     // columns under one scale: 16 or 32
  int offset;  // subtracted from quants; 0 with minima
  bool has_minimum;
  bool has_sub_scales;  // K types
  int chunk_columns() const { return has_sub_scales ? 256 : 32; }
  int block_bytes() const;      // of 32 columns
  int sub_scale_bytes() const;  // of these, at their end
  int chunk_bytes() const;
};

/// Nothing for float types.
std::optional<PanelFormat> panel_format(WeightType type);

/// One call: `rows` rows of 8-bit activations against one panel of 16 outputs.
struct PanelArgs {
  const std::byte* panel;
  int64_t chunks;
  int64_t tile;                // rows of the tile
  const int8_t* q8;            // [blocks, tile, 32]
  const float* scales;         // [blocks, tile]
  const int32_t* offset_sums;  // [blocks * 32 / sub, tile]: -offset * sum of quants
  const float* scaled_sums;    // [blocks * 32 / sub, tile]: scale * sum of quants
  float* out;                  // [rows, 16]
  int64_t out_stride;
};

/// Rows of a tile. The 8-bit form of Activations lies in such tiles (the last one shorter), each as
/// q8 [blocks, tile, 32], scales [blocks, tile] and sums [2 * blocks, tile], so that a kernel reads
/// straight ahead; a tile's activations stay in the first-level cache.
inline constexpr int64_t kRowTile = 32;

using PanelFunction = void (*)(const PanelArgs& args, int64_t rows);

/// The loop for a format on an instruction set; null where the machine lacks it.
PanelFunction panel_function_avx512(const PanelFormat& format);
PanelFunction panel_function_avx2(const PanelFormat& format);
PanelFunction panel_function_portable(const PanelFormat& format);

/// Which of the three matmul uses. Set once at start-up, before any thread runs.
enum class DenseIsa { kPortable, kAvx2, kAvx512Vnni };
DenseIsa best_dense_isa();
void set_dense_isa(DenseIsa isa);
DenseIsa dense_isa();

void pack(Weight& weight, ActivationType activations, ThreadPool& pool);
void prepare(MatrixView<const float> x, ActivationType activations, Activations& out,
             ThreadPool& pool);
void matmul(const Activations& x, ActivationType activations, std::span<const MatmulTarget> targets,
            ThreadPool& pool);

}  // namespace pagezip::cpu
