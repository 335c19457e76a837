#!/usr/bin/env bash
# Every check, in a fresh clone too: packages, models, format, clang-tidy on what changed, the tests
# that need no model under ASan and UBSan, then all tests on the release build.
#
#   scripts/test.sh           stops at the first failure
#   scripts/test.sh --full    hours: also ThreadSanitizer, clang-tidy on all files, load generators and
#                             an evaluation harness, fuzzing, and the random tests with many more seeds
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

full=false
case ${1:-} in
  '') ;;
  --full) full=true ;;
  *) echo "usage: scripts/test.sh [--full]" >&2; exit 2 ;;
esac

jobs=$(nproc)
stage() { echo; echo "== [$((SECONDS / 60)) min $((SECONDS % 60)) s] $*"; }
fail() { echo "test: error: $*" >&2; exit 1; }

build() { # PRESET
  cmake --preset "$1" >"build/$1.log" 2>&1 || { cat "build/$1.log"; fail "cmake --preset $1 failed"; }
  cmake --build --preset "$1" --parallel "$jobs"
}

# Our files with one of these endings: tracked, or new and not ignored.
sources() { git ls-files --cached --others --exclude-standard -- "$@" | sort -u; }

# Of the .cc files that the release build compiles: those that changed since the branch left main (on
# main: since the commit before), or that include a header that changed.
tidy_files() {
  local all changed base header
  all=$(comm -12 <(sources '*.cc' | grep -E '^(base|kernels|paging|scheduler|engine|api)/') \
    <(sed -n "s#^ *\"file\": \"$PWD/\(.*\)\".*#\1#p" build/release/compile_commands.json | sort -u))
  base=$(git merge-base HEAD origin/main 2>/dev/null || git merge-base HEAD main 2>/dev/null || true)
  if [ -z "$base" ] || [ "$base" = "$(git rev-parse HEAD)" ]; then
    base=$(git rev-parse -q --verify HEAD~1 || true)
  fi
  if $full || [ -z "$base" ] || ! git diff --quiet "$base" -- .clang-tidy; then
    echo "$all"
    return
  fi
  changed=$(git diff --name-only --diff-filter=d "$base"; git ls-files --others --exclude-standard)
  {
    echo "$changed" | grep -E '\.cc$' || true
    for header in $(echo "$changed" | grep -E '\.h$' || true); do
      echo "$all" | xargs grep -lF "#include \"$header\"" || true
    done
  } | sort -u | grep -xF "$all" || true
}

stage "packages"
needs=$($full && echo --full || echo --tests)
scripts/setup.sh "$needs"
scripts/client_env.sh "$needs"
stage "models"
export PAGEZIP_MODELS=${PAGEZIP_MODELS:-${XDG_CACHE_HOME:-$HOME/.cache}/pagezip/models}
scripts/fetch_models.sh smollm2 qwen2.5 gemma3
mkdir -p build

stage "format"
sources '*.h' '*.hpp' '*.c' '*.cc' '*.cu' '*.cuh' | xargs clang-format-14 --dry-run -Werror

stage "build: asan"
build asan
stage "tests under AddressSanitizer and UBSan"
ctest --preset asan -j "$jobs"

if $full; then
  stage "build: tsan"
  build tsan
  stage "tests under ThreadSanitizer"
  ctest --preset tsan -j "$jobs"
fi

stage "build: release"
build release

stage "clang-tidy"
mapfile -t files < <(tidy_files)
echo "${#files[@]} files"
if [ ${#files[@]} -gt 0 ]; then
  printf '%s\n' "${files[@]}" | xargs -P "$jobs" -n 1 clang-tidy-19 -p build/release --quiet \
    2>build/tidy.log || { cat build/tidy.log; fail "clang-tidy found something"; }
fi

if $full; then
  stage "clients that bring torch"
  tests/http_tests/run.sh "$PWD/build/release/pagezip" "$PWD/build/release/tests/write_tiny_model" \
    test_full_clients.py
  stage "fuzzing"
  scripts/fuzz.sh 300
  export PAGEZIP_TEST_FULL=1 PAGEZIP_FUZZ_REQUESTS=10000
fi

stage "all tests"
ctest --preset release -j "$jobs"
