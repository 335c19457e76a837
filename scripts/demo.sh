#!/usr/bin/env bash
# Compresses the KV cache of demo/handbook.md to 30 % and asks questions on it, each with the full
# and with the compressed cache. The answers can be checked in the text.
#
#   scripts/demo.sh           Qwen2.5-Coder-0.5B-Instruct
#   scripts/demo.sh --small   SmolLM2-135M-Instruct: a smaller download, and worse answers
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

name=qwen2.5 file=qwen2.5-coder-0.5b-instruct-q4_k_m.gguf
case ${1:-} in
  '') ;;
  --small) name=smollm2 file=SmolLM2-135M-Instruct.Q4_1.gguf ;;
  *) echo "usage: scripts/demo.sh [--small]" >&2; exit 2 ;;
esac
models=${PAGEZIP_MODELS:-${XDG_CACHE_HOME:-$HOME/.cache}/pagezip/models}

scripts/setup.sh
scripts/fetch_models.sh "$name"

echo "demo: building (once, some minutes; the log is build/demo.log)"
mkdir -p build
{ cmake --preset release && cmake --build --preset release --target pagezip --parallel; } \
  >build/demo.log 2>&1 || { tail -40 build/demo.log; echo "demo: error: the build failed" >&2; exit 1; }

command=(build/release/pagezip ask --model "$models/$file"
  --document demo/handbook.md --keep 0.3 --compare --max-tokens 64
  --question "Who is the safety officer?"
  --question "When was the observatory founded, and by whom?"
  --question "When do public evenings begin, and what does a ticket cost?"
  --question "How many litres of diesel does the generator's tank hold?"
  --question "How long may books be borrowed from the library?")
echo
echo "demo: running"
echo "${command[@]@Q}"
echo
"${command[@]}"
