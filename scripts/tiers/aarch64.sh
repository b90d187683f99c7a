#!/usr/bin/env bash
# Tries the wheel for aarch64 on an emulated processor: Debian 13's Python with the wheel must generate from SmolLM2 the
# same tokens as this machine. Builds the wheel if dist/ has none. Needs root, debootstrap, qemu-user, Debian's archive or a mirror
# of it (DEBIAN_MIRROR), Python 3.12 or newer beside that of .venv (PYTHON), and engines/smollm2, which quickstart.sh builds.
# Debian's files are kept in .cache/aarch64.
set -euo pipefail
source "$(dirname "$0")/../common/environment.sh"
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
folder=.cache/aarch64
root=$folder/debian13
packages=$folder/packages
engine=engines/smollm2

[ "$(id -u)" = 0 ] || die "debootstrap needs root: run this script as root"
command -v debootstrap >/dev/null || die "debootstrap is missing: $(install_command debootstrap debootstrap)"
command -v qemu-aarch64 >/dev/null || die "qemu-aarch64 is missing: $(install_command qemu-user qemu-user)"
[ -d $engine ] && [ -x .venv/bin/python ] || die "$engine is missing: bash scripts/quickstart.sh"

# emulated ARGUMENT…: runs Debian's Python for aarch64.
emulated() {
  PYTHONHOME=$root/usr PYTHONPATH=$packages PYTHONDONTWRITEBYTECODE=1 qemu-aarch64 -L $root $root/usr/bin/python3.13 "$@"
}

if [ ! -d $root ]; then
  say "fetch Debian 13 for arm64"
  rm -rf $root.partial
  mkdir -p $root.partial
  debootstrap --foreign --arch=arm64 --variant=minbase --include=python3 trixie $root.partial "$mirror"
  for package in $root.partial/var/cache/apt/archives/*.deb; do
    dpkg-deb --extract "$package" $root.partial
  done
  mv $root.partial $root
fi

wheel=$(find dist -name 'trtllm_lite-*-abi3-*aarch64.whl' -print -quit 2>/dev/null)
if [ -z "$wheel" ]; then
  python=$(PYTHON=${PYTHON:-python3.14 python3.13 python3.12} find_python) || exit 1
  [ "$(python_version "$python")" != 3.11 ] || die "the wheel for Debian's Python is built by 3.12 or newer: set PYTHON"
  bash scripts/build_wheels.sh aarch64 "$python"
  wheel=$(find dist -name 'trtllm_lite-*-abi3-*aarch64.whl' -print -quit)
fi

say "install $wheel for aarch64"
rm -rf $packages
platforms=(--platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 --platform manylinux2014_aarch64)
.venv/bin/pip install --quiet --no-compile --only-binary=:all: --python-version 3.13 "${platforms[@]}" --target $packages \
  "$wheel"

say "generate"
expected=$(.venv/bin/python scripts/tiers/greedy_tokens.py $engine)
found=$(emulated scripts/tiers/greedy_tokens.py $engine)
[ "$found" = "$expected" ] || die "aarch64 gives the tokens $found, this machine $expected"
echo "both give $found"
