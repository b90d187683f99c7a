#!/usr/bin/env bash
# Builds the engine of a build file twice, holds the two against each other byte by byte, verifies the one that stays,
# and describes it in ENGINE.json beside it. Needs no GPU. Further arguments go to both builds.
#   engine_build_job.sh FILE.yaml ENGINE [OPTIONS of trtllm-lite build]
set -euo pipefail
config=${1:?usage: engine_build_job.sh FILE.yaml ENGINE [OPTIONS]}
engine=${2:?usage: engine_build_job.sh FILE.yaml ENGINE [OPTIONS]}
shift 2
command=${TRTLLM_LITE:-trtllm-lite}

again=$(mktemp -d "$(dirname "$engine")/.again.XXXXXX")
trap 'rm -rf "$again"' EXIT
"$command" build --config "$config" --output_dir "$engine" --provenance "$@"
"$command" build --config "$config" --output_dir "$again/engine" --provenance "$@"
diff -r "$engine" "$again/engine" || {
  echo "error: two builds of $config differ: report it as a defect of trtllm_lite, with both engines" >&2
  exit 1
}
"$command" verify "$engine"
"$command" inspect "$engine" --json >"$engine.json"
