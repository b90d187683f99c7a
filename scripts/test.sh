#!/usr/bin/env bash
# Installs the test extra into .venv, lints, type-checks, and runs the whole suite, or what the arguments tell pytest to.
set -euo pipefail
source "$(dirname "$0")/common.sh"

say "install into .venv"
install_checkout test
bash scripts/fetch_model.sh smollm2-135m
bash scripts/install_test_tools.sh

say "lint and types"
bash scripts/lint.sh

say "tests"
if [ $# -gt 0 ]; then
  exec .venv/bin/python -m pytest "$@"
fi
# Side by side on two cores: the unit tests take about as long as all others.
others=$(mktemp)
trap 'kill $(jobs -p) 2> /dev/null || true; rm -f "$others"' EXIT
.venv/bin/python -m pytest tests --ignore=tests/unit -o cache_dir=build/pytest_cache > "$others" 2>&1 &
status=0
.venv/bin/python -m pytest tests/unit || status=$?
wait $! || status=$?
cat "$others"
exit $status
