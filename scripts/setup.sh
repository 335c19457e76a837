#!/usr/bin/env bash
# Installs the Debian packages that the build and the model download need, with --tests those of the
# clients that the server is tested with, and with --full those of the fuzzers too. Does nothing
# where all are there. Uses sudo when not root.
set -euo pipefail

packages=(
  build-essential cmake ninja-build pkg-config git
  libhwy-dev libxxhash-dev libpcre2-dev libfmt-dev libcli11-dev nlohmann-json3-dev
  libboost1.81-dev libboost-json1.81-dev libssl-dev prometheus-cpp-dev # the server; removes 1.74's headers
  libgtest-dev libgmock-dev libbenchmark-dev
  python3-venv                  # the model download runs pip in a virtual environment
  clang-format-14 clang-tidy-19 # versions are pinned: other ones format and warn differently
)
tests=(chromium curl fonts-dejavu-core openssl prometheus) # prometheus brings promtool
case ${1:-} in
  '') ;;
  --tests) packages+=("${tests[@]}") ;;
  --full) packages+=("${tests[@]}" clang-19 libclang-rt-19-dev) ;;
  *) echo "usage: scripts/setup.sh [--tests | --full]" >&2; exit 2 ;;
esac

say() { echo "setup: $*"; }
fail() { echo "setup: error: $*" >&2; exit 1; }

command -v apt-get >/dev/null ||
  fail "no apt-get on this system; pagezip is built on Debian 12. Install the equivalents of: ${packages[*]}"

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  say "all ${#packages[@]} packages are installed"
  exit 0
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || fail "run it as root, or install sudo; to install: ${missing[*]}"
  as_root=(sudo)
fi
say "installing ${missing[*]}"
"${as_root[@]}" apt-get update -q || fail "apt-get update failed"
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
  apt-get install -q -y --no-install-recommends "${missing[@]}" || fail "apt-get install failed"
say "done"
