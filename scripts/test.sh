#!/usr/bin/env bash
# test.sh [--tier TIER] [ARGUMENT…]: installs the test extra into .venv and runs a tier of the tests:
#   smoke    one minute: an engine end to end, a server, the parsers
#   default  all tests; of three or more parameters all pairs of values occur, of some parameters only each value
#   all      all tests with all combinations of parameters
#   oldest   the default tier with the oldest versions of dependencies, by scripts/tiers/dependencies.sh
#   newest   the default tier with the newest versions of dependencies
#   debian13 quickstart.sh on a bare Debian 13, by scripts/tiers/debian13.sh
#   aarch64  the wheel for aarch64 on an emulated processor, by scripts/tiers/aarch64.sh
# Arguments go to pytest. Without --tier, pytest runs what the arguments name, in one process.
set -euo pipefail
source "$(dirname "$0")/common/environment.sh"

smoke=(tests/unit/test_imports.py tests/unit/test_cli.py tests/e2e/test_llm.py tests/serve/test_openai.py
  tests/unit/serve/test_parsers_{families,json,reasoning}.py)
tiers="smoke, default, all, oldest, newest, debian13, aarch64"
tier=default
if [ "${1:-}" = --tier ]; then
  [ $# -ge 2 ] || die "--tier: expected one of $tiers after it"
  tier=$2
  shift 2
elif [ $# -gt 0 ]; then
  tier=named
fi
# A process that is done takes half of the tests that another process has left.
side_by_side=(--numprocesses auto --maxprocesses 4 --dist worksteal)
case $tier in
  named) run=() ;;
  smoke) run=("${side_by_side[@]}" "${smoke[@]}") ;;
  default) run=("${side_by_side[@]}") ;;
  all) run=("${side_by_side[@]}" --all-combinations) ;;
  oldest | newest) exec bash scripts/tiers/dependencies.sh "$tier" "$@" ;;
  debian13 | aarch64) exec bash "scripts/tiers/$tier.sh" ;;
  *) die "--tier is '$tier': expected one of $tiers" ;;
esac

say "install into .venv"
bash scripts/install_test_tools.sh & # waits for downloads most of the time
tools=$!
install_checkout test
for model in smollm2-135m all-minilm-l6-v2; do
  bash scripts/fetch_model.sh "$model"
done
wait "$tools"

say "tests"
# Tests that wait for ever end by pytest's own limit (pyproject.toml); this limit is for the whole run.
exec timeout --foreground 3h .venv/bin/python -m pytest "${run[@]}" "$@"
