#!/usr/bin/env bash
# Measures hybrids (random weights) on one NVIDIA GPU: OUT/latency-35b.json, OUT/latency-35b-first.json and so on.
#   measure_hybrids.sh OUT [tune] [35b|35b-fp8|27b|nano]...
# 35b, in bfloat16 (the default), and 35b-fp8 are Qwen3.5-35B-A3B, 27b is Qwen3.6-27B with products in FP8, nano is
# Nemotron 3 Nano 30B-A3B in bfloat16. With tune before them kernels of products are timed first, to fill the timing cache
# (TIMING_CACHE) that chooses them: thoroughly, which takes more than 150 s for 35b, or with TUNING=fast by --fast_build.
# Needs trtllm-lite on the PATH, and the cuBLAS that the cache was measured with. BANDWIDTH (GB/s read), TFLOPS (dense
# bfloat16) and FP8_TFLOPS are the measured ceilings of the card. `scripts/update_docs.py --record_hybrids NAME OUT` stores the reports
# and renews the documents.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:?usage: measure_hybrids.sh OUT [tune] [35b|35b-fp8|27b|nano]...}
shift
cache=${TIMING_CACHE:-configs/timing_caches/nvidia-h200.json}
tuning=()
if [ "${1:-}" = tune ]; then
  tuning=(--output_timing_cache "$cache")
  case ${TUNING:-thorough} in
    thorough) ;;
    fast) tuning+=(--fast_build) ;;
    *) echo "expected TUNING=thorough or fast, found $TUNING" >&2 && exit 2 ;;
  esac
  shift
fi
parts=${*:-35b}
mkdir -p "$out"

build() {  # MODEL [OPTION]...
  local model=$1
  shift
  trtllm-lite build --model_config "configs/models/$model.json" --strip_plan --target sm_90 \
    --input_timing_cache "$cache" --max_batch_size 256 --max_input_len 40000 --max_seq_len 40960 \
    --max_num_tokens 20480 "${tuning[@]}" --output_dir "$out/engine" "$@"
}

latency() {  # NAME BATCH_SIZES INPUT_LENS OUTPUT_LEN
  local peak=${TFLOPS:-789}
  case $1 in *fp8* | 27b*) peak=${FP8_TFLOPS:-1421} ;; esac
  trtllm-lite bench latency --engine_dir "$out/engine" --memory_bandwidth "${BANDWIDTH:-4470}" --peak_tflops "$peak" \
    --batch_size "$2" --input_len "$3" --output_len "$4" --repeats 3 --json "$out/latency-$1.json"
}

for part in $parts; do
  case $part in
    35b) build qwen3.5-35b-a3b ;;
    35b-fp8) build qwen3.5-35b-a3b --qformat fp8_rowwise ;;
    27b) build qwen3.6-27b --qformat fp8_rowwise ;;
    nano) build nemotron-3-nano-30b-a3b ;;
    *) echo "expected 35b, 35b-fp8, 27b or nano, found $part" >&2 && exit 2 ;;
  esac
  latency "$part" 1,64,256 512 65
  case $part in
    35b) latency "$part-first" 1 8000,20000,40000 2 ;;
    27b | nano) latency "$part-first" 1 8000 2 ;;
  esac
  rm -r "$out/engine"
done
