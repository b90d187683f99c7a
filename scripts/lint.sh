#!/usr/bin/env bash
# Formatting, lint and types; `lint.sh --fix` repairs what can be repaired.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=.venv/bin

mapfile -t cpp < <(git ls-files --cached --others --exclude-standard '*.cc' '*.h' '*.cuh')
if [ "${1:-}" = --fix ]; then
  "$bin/ruff" check --quiet --fix .
  "$bin/ruff" format --quiet .
  "$bin/clang-format" -i "${cpp[@]}"
fi
"$bin/ruff" check --quiet .
"$bin/ruff" format --quiet --check .
"$bin/clang-format" --dry-run -Werror "${cpp[@]}"
"$bin/mypy" --num-workers auto
