// The operations of the reference backend; contracts in kernels/kernels.h.
#pragma once

#include <span>

#include "kernels/kernels.h"

namespace pagezip::reference {

// Dense operations (dense.cc).
void pack(Weight& weight, ActivationType activations, ThreadPool& pool);
/// `cpu` has no better one.
void embed(const Weight& table, std::span<const int32_t> tokens, float scale,
           MatrixView<float> out);
void prepare(MatrixView<const float> x, ActivationType activations, Activations& out,
             ThreadPool& pool);
void matmul(const Activations& x, ActivationType activations, std::span<const MatmulTarget> targets,
            ThreadPool& pool);
void rms_norm(MatrixView<const float> x, const float* weight, float eps, MatrixView<float> out,
              ThreadPool& pool);
void rope(MatrixView<float> x, int head_dim, RopeStyle style, MatrixView<const float> cos,
          MatrixView<const float> sin, ThreadPool& pool);
void gate(GateFunction function, MatrixView<float> gate, MatrixView<const float> up,
          ThreadPool& pool);
void add(MatrixView<float> x, MatrixView<const float> y, ThreadPool& pool);

// Operations on pages (attention.cc).
void store_kv(const StoreKvArgs& args, ThreadPool& pool);
void attend(const AttendArgs& args, ThreadPool& pool);
void score(const ScoreArgs& args, ThreadPool& pool);
void copy_pairs(const CopyPairsArgs& args, ThreadPool& pool);

}  // namespace pagezip::reference
