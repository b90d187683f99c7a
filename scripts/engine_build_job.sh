#!/usr/bin/env bash
# Builds the engine of a build file twice, compares both byte by byte, verifies the engine that is kept, checks the
# answers that the file expects, and describes the engine in ENGINE.json and in the summary of a GitHub job. The second
# build begins with empty caches of kernels and checkpoints, so that it shows any effect of an older run's caches; a file
# with reproducible: false has no second build. If the two engines differ, they are kept as ENGINE.differs/1 and /2; an
# engine with an unexpected answer is kept as ENGINE.refused; in both cases there is no ENGINE. Needs no GPU. Further
# arguments go to both builds. PYTHON names another Python than python3.
#   engine_build_job.sh FILE.yaml ENGINE [OPTIONS of trtllm-lite build]
set -euo pipefail
config=${1:?usage: engine_build_job.sh FILE.yaml ENGINE [OPTIONS]}
engine=${2:?usage: engine_build_job.sh FILE.yaml ENGINE [OPTIONS]}
shift 2
command=${TRTLLM_LITE:-trtllm-lite}
python=${PYTHON:-python3}
scripts=$(dirname "$0")

again=$(mktemp -d "$(dirname "$engine")/.again.XXXXXX")
trap 'rm -rf "$again"' EXIT
# Both builds read the same files from the hub: a revision identifies them, and the build file may have their checksums.
export HF_HOME=${HF_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/huggingface}
"$command" build --config "$config" --output_dir "$engine" --provenance "$@"
rm -rf "$engine.differs" "$engine.refused" "$engine.json" # left by an older run
reproducible=$("$python" "$scripts/engine_checks.py" reproducible "$engine")
if [ "$reproducible" = true ]; then
  XDG_CACHE_HOME=$again/cache "$command" build --config "$config" --output_dir "$again/engine" --provenance "$@"
  if ! diff -r "$engine" "$again/engine"; then
    mkdir "$engine.differs"
    mv "$engine" "$engine.differs/1"
    mv "$again/engine" "$engine.differs/2"
    "$command" inspect "$engine.differs/1" --diff "$engine.differs/2" || true # inspect ends with 3 if results differ
    echo "error: two builds of $config differ: report it as a defect of trtllm_lite, with both ($engine.differs)" >&2
    exit 1
  fi
fi
"$command" verify "$engine"
"$python" "$scripts/engine_checks.py" answers "$engine" || {
  mv "$engine" "$engine.refused"
  exit 1
}
"$command" inspect "$engine" --json >"$again/engine.json"
mv "$again/engine.json" "$engine.json"
[ -z "${GITHUB_STEP_SUMMARY:-}" ] || "$python" "$scripts/engine_summary.py" "$engine" >>"$GITHUB_STEP_SUMMARY"
