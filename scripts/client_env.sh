#!/usr/bin/env bash
# Makes the Python environment of the clients that the server is tested with, at fixed versions, in
# ~/.cache/pagezip/clients (or $PAGEZIP_CLIENTS). Does nothing where it is there.
set -euo pipefail

clients=${PAGEZIP_CLIENTS:-${XDG_CACHE_HOME:-$HOME/.cache}/pagezip/clients}
requirements=(openai==3.57.0 schemathesis==4.32.5 playwright==1.65.2 pytest==9.2.0 pytest-timeout==2.4.0)

say() { echo "clients: $*"; }
fail() { echo "clients: error: $*" >&2; exit 1; }

if [ "$(cat "$clients/requirements" 2>/dev/null)" = "${requirements[*]}" ]; then
  say "have $clients"
  exit 0
fi
say "installing ${requirements[*]}"
python3 -m venv --clear "$clients" || fail "python3 -m venv failed; run scripts/setup.sh --tests first"
"$clients/bin/pip" install -q --disable-pip-version-check "${requirements[@]}" ||
  fail "pip can't install them"
echo "${requirements[*]}" >"$clients/requirements"
say "done"
