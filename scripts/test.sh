#!/usr/bin/env bash
# Installs the test extra into .venv, and runs the whole suite, or what the arguments tell pytest to.
set -euo pipefail
source "$(dirname "$0")/common.sh"

say "install into .venv"
bash scripts/install_test_tools.sh & # waits for downloads most of the time
tools=$!
install_checkout test
for model in smollm2-135m all-minilm-l6-v2; do
  bash scripts/fetch_model.sh "$model"
done
wait "$tools"

say "tests"
if [ $# -gt 0 ]; then
  exec .venv/bin/python -m pytest "$@"
fi
# Each process takes one file of tests after the other, in order.
exec .venv/bin/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder
