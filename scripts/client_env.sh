#!/usr/bin/env bash
# Makes the Python environments of the clients that the server is tested with, at fixed versions: in
# ~/.cache/pagezip/clients (or $PAGEZIP_CLIENTS), and with --full those of load generators and an
# evaluation harness beside it, each by itself because their needs contradict each other. They bring
# torch: 8 GB. Does nothing where they are there.
set -euo pipefail

clients=${PAGEZIP_CLIENTS:-${XDG_CACHE_HOME:-$HOME/.cache}/pagezip/clients}

say() { echo "clients: $*"; }
fail() { echo "clients: error: $*" >&2; exit 1; }

make_env() { # FOLDER REQUIREMENT...
  local folder=$1
  shift
  if [ "$(cat "$folder/requirements" 2>/dev/null)" = "$*" ]; then
    say "have $folder"
    return
  fi
  say "installing $*"
  python3 -m venv --clear "$folder" || fail "python3 -m venv failed; run scripts/setup.sh --tests first"
  "$folder/bin/pip" install -q --disable-pip-version-check "$@" || fail "pip can't install them"
  echo "$*" >"$folder/requirements"
  say "done"
}

case ${1:---tests} in
  --tests | --full) ;;
  *) echo "usage: scripts/client_env.sh [--tests | --full]" >&2; exit 2 ;;
esac
make_env "$clients" \
  openai==3.57.0 schemathesis==4.32.5 playwright==1.65.2 pytest==9.2.0 pytest-timeout==2.4.0
if [ "${1:-}" = --full ]; then
  make_env "$clients-aiperf" aiperf==0.13.0 gguf==0.19.0
  make_env "$clients-guidellm" guidellm==0.8.1
  make_env "$clients-lm-eval" 'lm-eval[api]==0.4.13' transformers==5.24.0
fi
