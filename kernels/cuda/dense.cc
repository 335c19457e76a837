#include "kernels/cuda/dense.h"

#include <cublasLt.h>

#include <bit>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "base/check.h"
#include "kernels/cuda/runtime.h"

namespace pagezip::cuda {
namespace {

void require_blas(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    detail::check_failed(__FILE__, __LINE__,
                         std::string("cuBLASLt: ") + what + ": " + cublasLtGetStatusString(status));
  }
}

// cuBLASLt's own handles, destroyed with their scope.
template <typename Handle, cublasStatus_t (*kDestroy)(Handle)>
class Owned {
 public:
  Owned() = default;
  ~Owned() { kDestroy(handle); }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;

  Handle handle = nullptr;
};
using Operation = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

/// A product as cuBLASLt sees it: column-major, so out = weight · x with weight transposed.
struct Product {
  explicit Product(const DenseParams& p, int64_t rows) {
    const cudaDataType type = p.bf16 ? CUDA_R_16BF : CUDA_R_32F;
    require_blas(cublasLtMatmulDescCreate(&operation.handle, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                 "operation");
    set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    if (p.bias != nullptr) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
    }
    create(weight, type, p.cols, p.outputs, p.cols);
    create(x, type, p.cols, rows, p.x_stride);
    create(out, CUDA_R_32F, p.outputs, rows, p.out_stride);
  }

  Operation operation;
  Layout weight;
  Layout x;
  Layout out;

 private:
  template <typename Value>
  void set(cublasLtMatmulDescAttributes_t attribute, const Value& value) {
    require_blas(cublasLtMatmulDescSetAttribute(operation.handle, attribute, &value, sizeof(value)),
                 "attribute");
  }
  static void create(Layout& layout, cudaDataType type, int64_t rows, int64_t cols,
                     int64_t stride) {
    require_blas(cublasLtMatrixLayoutCreate(&layout.handle, type, static_cast<uint64_t>(rows),
                                            static_cast<uint64_t>(cols), stride),
                 "layout");
  }
};

class Library {
 public:
  Library() { require_blas(cublasLtCreate(&handle_), "create"); }

  void run(const DenseParams& p, Stream stream) {
    constexpr float kOne = 1;
    constexpr float kZero = 0;
    const cublasLtMatmulAlgo_t algorithm = algorithm_of(p);
    const Product product(p, p.rows);
    require_blas(
        cublasLtMatmul(handle_, product.operation.handle, &kOne, p.weight, product.weight.handle,
                       p.x, product.x.handle, &kZero, p.out, product.out.handle, p.out,
                       product.out.handle, &algorithm, nullptr, 0, stream),
        "matmul");
  }

 private:
  using Key = std::tuple<bool, bool, int64_t, int64_t, int64_t, int64_t, int64_t>;

  const cublasLtMatmulAlgo_t& algorithm_of(const DenseParams& p) {
    const auto rows = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(p.rows)));
    const Key key{p.bf16, p.bias != nullptr, p.outputs, p.cols, p.x_stride, p.out_stride, rows};
    const auto found = algorithms_.find(key);
    return found != algorithms_.end() ? found->second
                                      : algorithms_.emplace(key, choose(p, rows)).first->second;
  }

  // The first of the library's own suggestions that sums each output in one go.
  cublasLtMatmulAlgo_t choose(const DenseParams& p, int64_t rows) {
    constexpr int kSuggestions = 32;
    const Product product(p, rows);
    Preference preference;
    require_blas(cublasLtMatmulPreferenceCreate(&preference.handle), "preference");
    const uint32_t no_reduction = CUBLASLT_REDUCTION_SCHEME_NONE;
    require_blas(cublasLtMatmulPreferenceSetAttribute(preference.handle,
                                                      CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                                      &no_reduction, sizeof(no_reduction)),
                 "preference");
    std::vector<cublasLtMatmulHeuristicResult_t> results(kSuggestions);
    int count = 0;
    require_blas(
        cublasLtMatmulAlgoGetHeuristic(handle_, product.operation.handle, product.weight.handle,
                                       product.x.handle, product.out.handle, product.out.handle,
                                       preference.handle, kSuggestions, results.data(), &count),
        "choosing an algorithm");
    for (int i = 0; i < count; ++i) {
      const cublasLtMatmulHeuristicResult_t& result = results[static_cast<size_t>(i)];
      if (result.state == CUBLAS_STATUS_SUCCESS && split_of(result.algo) <= 1) {
        return result.algo;
      }
    }
    require_blas(CUBLAS_STATUS_NOT_SUPPORTED, "no algorithm without split-K");
    return {};
  }

  static int32_t split_of(const cublasLtMatmulAlgo_t& algorithm) {
    int32_t split = 0;
    size_t written = 0;
    require_blas(cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM,
                                                      &split, sizeof(split), &written),
                 "an algorithm's split");
    return split;
  }

  cublasLtHandle_t handle_ = nullptr;  // the process has it to its end
  std::map<Key, cublasLtMatmulAlgo_t> algorithms_;
};

}  // namespace

void dense(const DenseParams& params, Stream stream) {
  static Library library;
  if (params.rows > 0) {
    library.run(params, stream);
  }
}

}  // namespace pagezip::cuda
