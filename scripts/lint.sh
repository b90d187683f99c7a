#!/usr/bin/env bash
# Checks formatting, lint and types by the tools of requirements/lint.txt, and the first words of comments; `lint.sh
# --fix` repairs what can be repaired. Types of other packages come from .venv, where test.sh has installed them.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=.venv/bin
[ -x $bin/pip ] || { echo "error: there is no .venv: run bash scripts/test.sh first" >&2; exit 1; }
"$bin/pip" install --quiet --disable-pip-version-check --requirement requirements/lint.txt

mapfile -t cpp < <(git ls-files --cached --others --exclude-standard '*.cc' '*.h' '*.cuh')
if [ "${1:-}" = --fix ]; then
  "$bin/ruff" check --quiet --fix .
  "$bin/ruff" format --quiet .
  "$bin/clang-format" -i "${cpp[@]}"
fi
"$bin/ruff" check --quiet .
"$bin/ruff" format --quiet --check .
"$bin/clang-format" --dry-run -Werror "${cpp[@]}"
"$bin/python" scripts/check_words.py trtllm_lite plugins scripts tests
"$bin/mypy"
