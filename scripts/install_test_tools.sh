#!/usr/bin/env bash
# Installs programs that some tests run and pip cannot install, as Debian's packages docker-registry and chromium, if
# this user may install packages. Otherwise it says which tests are skipped.
set -euo pipefail

any_of() { command -v "$@" >/dev/null 2>&1; }  # true if one of the programs is there
missing=()
any_of docker-registry registry || missing+=(docker-registry)
any_of chromium chromium-browser google-chrome || missing+=(chromium)
[ ${#missing[@]} -gt 0 ] || exit 0

install() {
  local as_root=()
  [ "$(id -u)" = 0 ] || as_root=(sudo -n)
  command -v apt-get >/dev/null || { echo "there is no apt-get"; return 1; }
  "${as_root[@]}" true || return 1
  "${as_root[@]}" apt-get update -qq &&
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends "${missing[@]}" || return 1
  # The package starts a registry, which the tests do not need.
  ! command -v systemctl >/dev/null || "${as_root[@]}" systemctl disable --now docker-registry || true
}

echo "installing ${missing[*]}"
if ! output=$(install 2>&1); then
  echo "not installed (${output##*$'\n'}): these tests will be skipped:"
  for package in "${missing[@]}"; do
    case $package in
      docker-registry) echo "- docker-registry: tests of push and pull with a real registry" ;;
      chromium) echo "- chromium: tests of pages in a browser" ;;
    esac
  done
fi
