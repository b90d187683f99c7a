#!/usr/bin/env bash
# Tests and times what runs on NVIDIA GPUs, on a machine that has one: needs a Python with torch for CUDA, numpy, pytest,
# cuda-bindings and nvidia-cuda-nvrtc. Kernels are compiled here, so the package itself need not be installed; where it
# is installed with what tests need (pip install . --config-settings cmake.define.TRTLLM_LITE_TESTING=ON), whole engines are tested,
# too. Only SmolLM2 is fetched from the network, if it is neither in .cache nor at $TRTLLM_LITE_SMOLLM2; without network
# its tests are skipped.
#   test_gpu.sh [test] ARGS              every test; ARGS go to pytest
#   test_gpu.sh sanitize [TOOL] ARGS     a small case of each kernel under compute-sanitizer; TOOL is memcheck or racecheck
#                                        (default: one after the other). memcheck also runs a whole engine; racecheck
#                                        cannot: cuBLAS's kernels fill the host's memory with its records.
#   test_gpu.sh bench                    times kernels
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
export PYTHONUNBUFFERED=1

run_sanitizer() {  # TOOL ARGS
  local tool=$1 tests=(tests/gpu/test_smallest.py)
  shift
  if [ "$tool" = memcheck ] && "$python" -c 'import trtllm_lite._testing' 2>/dev/null; then
    tests+=(tests/gpu/test_smallest_engine.py)
  fi
  # Refused calls of the driver are not reported: the runtime counts a kernel's parameters by asking until it is refused,
  # and turns every other refusal into an exception.
  local quiet=()
  [ "$tool" = memcheck ] && quiet=(--report-api-errors no)
  TL_RACECHECK=1 compute-sanitizer --tool "$tool" "${quiet[@]}" --error-exitcode 1 "$python" -m pytest "${tests[@]}" "$@"
}

mode=test
case ${1:-} in
  test | sanitize | bench) mode=$1; shift ;;
esac
case $mode in
  test) "$python" -m pytest tests/gpu -rs "$@" ;;
  sanitize)
    case ${1:-} in
      memcheck | racecheck) run_sanitizer "$@" ;;
      *) run_sanitizer memcheck "$@"; run_sanitizer racecheck "$@" ;;
    esac
    ;;
  bench)
    for part in linear tiled attention rows step; do "$python" -m "tests.gpu.bench_$part"; done
    ;;
esac
