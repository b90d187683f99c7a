#!/usr/bin/env bash
# Runs ENGINE in a real Triton Inference Server and compares its answers with those of LLM. The server is that of the
# package nvidia-pytriton (55 MB), in an environment of its own in .cache/triton. Needs a Python with a shared library.
set -euo pipefail
engine=$(realpath "${1:?usage: check_triton.sh ENGINE}")
source "$(dirname "$0")/common/environment.sh"

home=.cache/triton
[ -x $home/bin/python ] || "$(find_python)" -m venv $home
$home/bin/pip install --quiet nvidia-pytriton "numpy<2" .  # that package's Python backend does not support numpy 2
exec $home/bin/python scripts/check_triton.py "$engine"
