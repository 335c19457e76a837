#!/usr/bin/env bash
# For a GPU machine that has no packages: builds the tests of whole models here, for gpu_check.sh to
# run there. Needs what a release build needs, and the CUDA toolkit. They go to build/gpu-pack, with
# the libraries that come from packages; they run in the root of a tree of the same version.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

build=build/gpu-host pack=build/gpu-pack
CUDACXX=${CUDACXX:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)} \
  cmake -G Ninja -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DPAGEZIP_CUDA=ON -DPAGEZIP_CLI=OFF \
  -DPAGEZIP_BENCH=OFF -DPAGEZIP_TEST_ROOT=. -DCMAKE_CUDA_ARCHITECTURES="${CUDAARCHS:-80;90}"
cmake --build "$build" --target gpu_model_tests golden_tests

rm -rf "$pack"
mkdir -p "$pack"
for program in gpu_model_tests golden_tests; do
  strip -o "$pack/$program" "$build/tests/$program"
  # Not the system's own, nor the toolkit's.
  ldd "$build/tests/$program" | awk '$3 ~ /^\// {print $3}' |
    grep -v -E '/(libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s|libcu[a-zA-Z]*)\.so' |
    xargs -r cp -t "$pack"
done
du -sh "$pack"
