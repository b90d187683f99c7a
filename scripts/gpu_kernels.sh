#!/usr/bin/env bash
# Tests and times every GPU kernel on the machine it runs on: needs an NVIDIA GPU and a Python with torch for CUDA, numpy,
# pytest, cuda-bindings and nvidia-cuda-nvrtc. Kernels are compiled here, so the package itself need not be installed;
# where it is, whole engines are tested, too.
#   gpu_kernels.sh              tests, then benchmarks
#   gpu_kernels.sh test ARGS    tests only; ARGS go to pytest
#   gpu_kernels.sh sanitize     one small case of each kernel under compute-sanitizer (memcheck, then racecheck)
#   gpu_kernels.sh bench        benchmarks only
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
export PYTHONUNBUFFERED=1

run_tests() { "$python" -m pytest tests/gpu "$@"; }
run_benchmarks() {
  "$python" -m tests.gpu.bench_linear
  "$python" -m tests.gpu.bench_attention
  "$python" -m tests.gpu.bench_rows
  "$python" -m tests.gpu.bench_step
}
run_sanitizer() {
  local tool
  for tool in memcheck racecheck; do
    TL_RACECHECK=1 compute-sanitizer --tool "$tool" --error-exitcode 1 \
      "$python" -m pytest tests/gpu/test_smallest.py "$@"
  done
}

mode=${1:-all}
shift || true
case $mode in
  all) run_tests && run_benchmarks ;;
  test) run_tests "$@" ;;
  sanitize) run_sanitizer "$@" ;;
  bench) run_benchmarks ;;
  *) echo "usage: $0 [all | test ARGS | sanitize | bench]" >&2; exit 2 ;;
esac
