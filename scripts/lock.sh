#!/usr/bin/env bash
# Writes requirements/test.txt, what CI installs for the tests: each package by its version and the hashes of its files.
# Its versions are the newest that pyproject.toml allows on Python 3.11, the oldest Python supported, so that all
# Pythons can have them. Torch is left out, with the packages that only it needs: its builds for CPUs and for GPUs are
# different files that need different packages, and pyproject.toml names its version. Needs uv 0.13.
set -euo pipefail
cd "$(dirname "$0")/.."
uv pip compile pyproject.toml --extra test --upgrade --generate-hashes --excludes <(echo torch) --no-header --no-annotate \
  --python-version 3.11 --python-platform x86_64-manylinux_2_28 --quiet --output-file requirements/test.txt
sed -i '1i # What CI installs for the tests; written by scripts/lock.sh.' requirements/test.txt
