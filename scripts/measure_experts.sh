#!/usr/bin/env bash
# Measures mixtures of experts (bfloat16 activations, random weights) on one NVIDIA GPU: OUT/latency-qwen3.json and so on.
#   measure_experts.sh OUT [tune]
# The timing cache (TIMING_CACHE) chooses the kernels of products; with tune, kernels are timed first to fill it. Needs
# trtllm-lite on the PATH, and the cuBLAS that the cache was measured with. BANDWIDTH (GB/s read) and TFLOPS (dense
# bfloat16) are the measured ceilings of the card.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:?usage: measure_experts.sh OUT [tune]}
cache=${TIMING_CACHE:-configs/timing_caches/nvidia-h200.json}
tuning=()
case ${2:-} in
  tune) tuning=(--output_timing_cache "$cache") ;;
  ?*) echo "expected tune after OUT, found $2" >&2 && exit 2 ;;
esac
ceilings=(--memory_bandwidth "${BANDWIDTH:-4470}" --peak_tflops "${TFLOPS:-789}")
mkdir -p "$out"

build() {  # MODEL [OPTION]...
  local model=$1
  shift
  trtllm-lite build --model_config "configs/models/$model.json" --strip_plan --target sm_90 \
    --input_timing_cache "$cache" --max_batch_size 512 --max_input_len 2048 --max_seq_len 4096 --max_num_tokens 8192 \
    "${tuning[@]}" --output_dir "$out/engine" "$@"
}

latency() {  # NAME BATCH_SIZES INPUT_LENS OUTPUT_LEN
  trtllm-lite bench latency --engine_dir "$out/engine" "${ceilings[@]}" --batch_size "$2" --input_len "$3" \
    --output_len "$4" --repeats 3 --json "$out/latency-$1.json"
}

throughput() {  # NUM_REQUESTS NAME
  trtllm-lite bench throughput --engine_dir "$out/engine" "${ceilings[@]}" --skip_tokenizer_init --input_len 1000 \
    --output_len 1000 --num_requests "$1" --kv_cache_free_gpu_memory_fraction 0.97 --json "$out/throughput-$2.json"
}

build qwen3-30b-a3b --qformat fp8_rowwise
latency qwen3-fp8 1,8,64,256 128 128
rm -r "$out/engine"

build gpt-oss-20b --max_batch_size 1024
latency gpt-oss 1,8,64 128 128
throughput 1024 gpt-oss
rm -r "$out/engine"

build qwen3-30b-a3b
latency qwen3 1,8,64,256 128 128
latency qwen3-first 1 2048 8
throughput 512 qwen3
rm -r "$out/engine"

build qwen3-30b-a3b --kv_cache_dtype fp8 --max_batch_size 768
throughput 768 qwen3-fp8-cache
rm -r "$out/engine"

build mixtral-8x7b-v0.1
latency mixtral 1,8 128 128
rm -r "$out/engine"
