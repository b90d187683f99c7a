#!/usr/bin/env bash
# Measures engines of the Llama-3.1-8B shape (bfloat16, random weights) of one rank and of several, on as many NVIDIA GPUs
# of this machine: OUT/latency-1.json and so on. `scripts/update_docs.py --record_ranks NAME OUT` stores the reports and
# renews the documents.
#   measure_ranks.sh OUT [NUM_RANKS]...      (default: 1 2)
# The products are chosen by the timing cache (TIMING_CACHE). Needs trtllm-lite on the PATH, and the cuBLAS that the cache
# was measured with. BANDWIDTH (GB/s read) and TFLOPS (dense bfloat16) are the measured ceilings of a card.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:?usage: measure_ranks.sh OUT [NUM_RANKS]...}
shift
cache=${TIMING_CACHE:-configs/timing_caches/nvidia-h200.json}
ceilings=(--memory_bandwidth "${BANDWIDTH:-4470}" --peak_tflops "${TFLOPS:-789}")
mkdir -p "$out"

for ranks in ${*:-1 2}; do
  engine=$out/engine-$ranks
  trtllm-lite build --model_config configs/models/llama-3.1-8b.json --strip_plan --target sm_90 --tp_size "$ranks" \
    --input_timing_cache "$cache" --max_batch_size 256 --max_input_len 8192 --max_seq_len 8320 --max_num_tokens 8192 \
    --output_dir "$engine"
  trtllm-lite bench latency --engine_dir "$engine" "${ceilings[@]}" --batch_size 1,8,64,256 --input_len 128 \
    --output_len 128 --json "$out/latency-$ranks.json"
  trtllm-lite bench latency --engine_dir "$engine" "${ceilings[@]}" --batch_size 1 --input_len 8192 --output_len 8 \
    --json "$out/first-$ranks.json"
  trtllm-lite bench throughput --engine_dir "$engine" "${ceilings[@]}" --skip_tokenizer_init --input_len 1000 \
    --output_len 1000 --num_requests 384 --kv_cache_free_gpu_memory_fraction 0.97 --json "$out/throughput-$ranks.json"
  rm -r "$engine"
done

# Other models and formats, split between two GPUs.
limits=(--max_batch_size 64 --max_input_len 2048 --max_seq_len 4096 --max_num_tokens 2048)
for shape in "llama-3.1-8b fp8_rowwise 1,64" "llama-3.1-70b fp8_rowwise 1,64" "llama-3.1-70b full_prec 1"; do
  read -r model qformat batches <<<"$shape"
  trtllm-lite build --model_config "configs/models/$model.json" --strip_plan --target sm_90 --tp_size 2 \
    --qformat "$qformat" --input_timing_cache "$cache" "${limits[@]}" --output_dir "$out/engine"
  trtllm-lite bench latency --engine_dir "$out/engine" --batch_size "$batches" --input_len 128 --output_len 128 \
    --json "$out/shape-$model-$qformat.json"
  rm -r "$out/engine"
done

# A model that fits one card, to measure what a second card adds: the number of requests grows with the cards.
for ranks in 1 2; do
  trtllm-lite build --model_config configs/models/llama-3.1-70b.json --strip_plan --target sm_90 --tp_size "$ranks" \
    --qformat fp8_rowwise --kv_cache_dtype fp8 --input_timing_cache "$cache" --max_batch_size $((160 * ranks)) \
    --max_input_len 1024 --max_seq_len 2048 --max_num_tokens 8192 --output_dir "$out/engine"
  trtllm-lite bench throughput --engine_dir "$out/engine" --skip_tokenizer_init --input_len 1000 --output_len 1000 \
    --num_requests $((160 * ranks)) --kv_cache_free_gpu_memory_fraction 0.97 --json "$out/shape-70b-throughput-$ranks.json"
  rm -r "$out/engine"
done
