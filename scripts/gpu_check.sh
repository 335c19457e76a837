#!/usr/bin/env bash
# On a machine with a GPU: builds the CUDA kernels with their tests, runs the tests on the GPU, and
# runs a part of them under compute-sanitizer. Needs the CUDA toolkit, a C++20 compiler, CMake and
# GoogleTest's source (GTEST_SOURCE, by default Debian's /usr/src/googletest); installs nothing.
# What scripts/gpu_pack.sh made elsewhere is run too: tiny models, the serving engine, and with
# PAGEZIP_MODELS the golden numbers of the models that are there.
#
# Exit code 77: there is no GPU. The log is build/gpu/check.log.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

nvcc=${CUDACXX:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
[ -x "$nvcc" ] || { echo "gpu_check: error: no nvcc; set CUDACXX to its path" >&2; exit 1; }
sanitizer=$(command -v compute-sanitizer || echo "$(dirname "$nvcc")/compute-sanitizer")
architecture=native
nvidia-smi -L 2>/dev/null || architecture=90 # no GPU: still shows whether it builds

mkdir -p build/gpu
exec > >(tee build/gpu/check.log) 2>&1
echo "== build"
CUDACXX=$nvcc cmake -S tests/cuda -B build/gpu -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_CUDA_ARCHITECTURES=$architecture \
  ${GTEST_SOURCE:+-DGTEST_SOURCE="$GTEST_SOURCE"} >build/gpu/configure.log
cmake --build build/gpu --parallel "$(nproc)" --target gpu_tests

export CUDA_LAUNCH_BLOCKING=1
echo "== tests"
build/gpu/gpu_tests

echo "== compute-sanitizer"
if [ -x "$sanitizer" ]; then
  for tool in memcheck racecheck synccheck; do
    echo "-- $tool"
    "$sanitizer" --tool "$tool" --error-exitcode 1 build/gpu/gpu_tests \
      --gtest_filter='*OneRagged*:*RowThatSees*:*TiesGoByPlace*:*Compact*:*Append*:CudaRows*'
  done
else
  echo "skipped: compute-sanitizer is not installed"
fi

pack=build/gpu-pack
if [ -d "$pack" ]; then
  unset CUDA_LAUNCH_BLOCKING
  export LD_LIBRARY_PATH=$PWD/$pack:$(dirname "$nvcc")/../lib64:${LD_LIBRARY_PATH:-}
  echo "== whole models"
  "$pack/gpu_model_tests"
  if [ -x "$sanitizer" ]; then
    "$sanitizer" --tool memcheck --error-exitcode 1 "$pack/gpu_model_tests" \
      --gtest_filter='*wide_head*:*CudaEngineTest*llama*'
  fi
  for model in smollm2:SmolLM2 qwen2:qwen2 gemma3:gemma-3; do
    if compgen -G "${PAGEZIP_MODELS:-/none}/${model#*:}*" >/dev/null; then
      PAGEZIP_TEST_BACKEND=cuda "$pack/golden_tests" --gtest_filter="*KvzipGolden*${model%:*}*"
    fi
  done
else
  echo "skipped: whole models; scripts/gpu_pack.sh builds their tests where packages are"
fi
