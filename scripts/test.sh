#!/usr/bin/env bash
# Installs the test extra into .venv, lints, type-checks, and runs the whole suite. Arguments go to pytest.
set -euo pipefail
source "$(dirname "$0")/common.sh"

say "install into .venv"
install_checkout test
bash scripts/fetch_model.sh smollm2-135m

say "lint and types"
bash scripts/lint.sh

say "tests"
.venv/bin/python -m pytest "$@"
