# shellcheck shell=bash
# Prints the Python of an environment below WORK that has llama-cpp-python. If the package is missing, it is built for
# this machine, but without AMX, with which it crashes on some virtual machines. LLAMA_CPP_PYTHON=… names another Python
# that has the package.
#   source scripts/common/llama_cpp_python.sh; llama=$(llama_cpp_python WORK)
llama_cpp_python() {
  local python=${LLAMA_CPP_PYTHON:-} switches=(-DGGML_NATIVE=OFF) feature switch
  if [ -z "$python" ]; then
    python=$1/llama-cpp/bin/python
    [ -x "$python" ] || .venv/bin/python -m venv "$1/llama-cpp"
    for feature in avx2 fma f16c avx512f avx512_vnni avx512_bf16 avx512vbmi; do
      case $feature in avx512f) switch=AVX512 ;; avx512vbmi) switch=AVX512_VBMI ;; *) switch=${feature^^} ;; esac
      if grep -qw "$feature" /proc/cpuinfo; then switches+=("-DGGML_$switch=ON"); fi
    done
    CMAKE_ARGS="${switches[*]}" "$python" -m pip install --quiet --no-binary llama-cpp-python llama-cpp-python >&2
  fi
  echo "$python"
}
