#!/usr/bin/env bash
# Fuzzes the readers of untrusted input with AddressSanitizer and UBSan, one target after another.
#
#   scripts/fuzz.sh [SECONDS] [TARGET...]     60 seconds for each of all targets by default
#
# Needs clang++-19 and its runtime (Debian: clang-19, libclang-rt-19-dev). What is found is kept in
# build/fuzz/found/TARGET; an input that ends in a crash goes, once that is fixed, to
# tests/fuzz/corpus/TARGET, where the unit tests run it too.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() { echo "fuzz: error: $*" >&2; exit 1; }

seconds=${1:-60}
[[ $seconds =~ ^[1-9][0-9]*$ ]] || { echo "usage: scripts/fuzz.sh [SECONDS] [TARGET...]" >&2; exit 2; }
targets=("${@:2}")
[ ${#targets[@]} -gt 0 ] || mapfile -t targets < <(ls tests/fuzz/corpus)

build=build/fuzz
mkdir -p "$build"
cmake --preset fuzz >"$build.log" 2>&1 || { cat "$build.log"; fail "cmake --preset fuzz failed"; }
for target in "${targets[@]}"; do
  [ -d "tests/fuzz/corpus/$target" ] || fail "no target '$target'"
  cmake --build --preset fuzz --parallel "$(nproc)" --target "fuzz_$target"
done

export UBSAN_OPTIONS=print_stacktrace=1
broken=()
for target in "${targets[@]}"; do
  echo; echo "== $target: $seconds s"
  found=$build/found/$target
  mkdir -p "$found"
  options=(-max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -max_len=16384
           -print_final_stats=1 -artifact_prefix="$found-")
  [ ! -f "tests/fuzz/$target.dict" ] || options+=(-dict="tests/fuzz/$target.dict")
  "$build/tests/fuzz/fuzz_$target" "${options[@]}" "$found" "tests/fuzz/corpus/$target" \
    >"$found.log" 2>&1 || broken+=("$target")
  grep -E '^(stat::number_of_executed_units|stat::average_exec_per_sec|stat::new_units_added)' \
    "$found.log" || true
  grep -E 'cov: [0-9]+' "$found.log" | tail -n 1 || true
done
[ ${#broken[@]} -eq 0 ] || fail "findings in ${broken[*]}: see $build/found/TARGET.log"
