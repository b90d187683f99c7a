#!/usr/bin/env bash
# Measures engines of the Llama-3.1-8B and Llama-3.2-1B shapes (bfloat16, random weights) on this machine's NVIDIA GPU, and
# writes the reports to OUT/*.json; `scripts/update_docs.py --record NAME OUT/*.json` stores them and renews the documents.
#   measure_gpu.sh OUT [tune|build|latency|throughput|speculation|adapters|deterministic|large|start-up|guided]...
# The default is build, which needs no GPU, to throughput.
# tune finds the fastest kernel of each product, on a GPU that passes `test_gpu.sh`, and writes it to the timing cache
# (TIMING_CACHE) with which engines are built: about a minute for each shape.
# start-up makes an 8B model of random weights, converts and builds it: up to 32 GB below OUT, 16 GB at the end. It needs
# torch and transformers.
# speculation builds an engine that takes 4 draft tokens a step, and times it without drafts and with synthetic drafts of
# which 80% are right (no drafter predicts random weights): always 4, and an adaptive number.
# adapters times an engine that has room for adapters, with 16 adapters and with none, and an engine without room for any.
# deterministic times an engine that is built with --deterministic.
# guided makes models of random weights with the tokenizer of SmolLM2 (a GGUF file in .cache, or the file that
# TRTLLM_LITE_SMOLLM2 names), and measures what grammars cost a full batch; GUIDED_SHAPE names another shape than the
# 1B one, such as llama-3.1-8b.
# large builds and times the Llama-3.1-70B shape, which fits into a card of 141 GB with a QFORMAT of eight bits or less.
# With QFORMAT (and KV_CACHE_DTYPE) the engines are built, and tuned, with --qformat (and --kv_cache_dtype).
# Needs trtllm-lite on the PATH, and the cuBLAS that the timing cache was measured with (its cublaslt_version: 130100 is
# 13.1.0). BANDWIDTH (GB/s read), TFLOPS (dense bfloat16) and HOST_BANDWIDTH (GB/s from pinned host memory) are the
# card's measured ceilings.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:?usage: measure_gpu.sh OUT [tune|build|latency|throughput|speculation|adapters|deterministic|large|start-up|guided]...}
shift
parts=${*:-build latency throughput}
cache=${TIMING_CACHE:-configs/timing_caches/nvidia-h200.json}
ceilings=(--memory_bandwidth "${BANDWIDTH:-4470}" --peak_tflops "${TFLOPS:-789}")
# 512 requests may need more KV cache than there is: all run until the cache is full, and the blocks of preempted requests
# return from host memory, up to 16 GB for 128/2048 (tests/unit/schedule/bench_policies.cc predicts the gain).
beyond_memory=(--capacity_scheduler_policy MAX_UTILIZATION --host_cache_size 20000000000)
quantization=(${QFORMAT:+--qformat "$QFORMAT"} ${KV_CACHE_DTYPE:+--kv_cache_dtype "$KV_CACHE_DTYPE"})
mkdir -p "$out"

tune() {  # SHAPE MAX_BATCH_SIZE MAX_NUM_TOKENS
  trtllm-lite build --model_config "configs/models/$1.json" --strip_plan --target sm_90 --input_timing_cache "$cache" \
    --output_timing_cache "$cache" --max_batch_size "$2" --max_input_len 2048 --max_seq_len 2304 \
    --max_num_tokens "$3" "${quantization[@]}" --output_dir "$out/engines/tuned"
}
build() {  # NAME SHAPE MAX_BATCH_SIZE MAX_INPUT_LEN MAX_SEQ_LEN MAX_NUM_TOKENS [OPTION]...
  trtllm-lite build --model_config "configs/models/$2.json" --strip_plan --target sm_90 --input_timing_cache "$cache" \
    --max_batch_size "$3" --max_input_len "$4" --max_seq_len "$5" --max_num_tokens "$6" "${quantization[@]}" \
    "${@:7}" --output_dir "$out/engines/$1"
}
start_up() {
  python3 scripts/random_model.py configs/models/llama-3.1-8b.json "$out/model"
  trtllm-lite convert --model_dir "$out/model" --output_dir "$out/checkpoint" --dtype bfloat16
  rm -r "$out/model"
  trtllm-lite build --checkpoint_dir "$out/checkpoint" --target sm_90 --input_timing_cache "$cache" \
    --max_batch_size 64 --max_input_len 2048 --max_seq_len 4096 --output_dir "$out/engines/8b-weights"
  rm -r "$out/checkpoint"
  latency start-up-8b 8b-weights 1 128 2 --host_bandwidth "${HOST_BANDWIDTH:-55}"
}
guided() {
  local shape=${GUIDED_SHAPE:-llama-3.2-1b}
  local smollm2=${TRTLLM_LITE_SMOLLM2:-.cache/SmolLM2-135M-Instruct.Q4_1.gguf}
  trtllm-lite convert --model_dir "$smollm2" --output_dir "$out/smollm2"
  python3 scripts/random_model.py "configs/models/$shape.json" "$out/model" "$out/smollm2"
  trtllm-lite convert --model_dir "$out/model" --output_dir "$out/checkpoint" --dtype bfloat16
  rm -r "$out/model" "$out/smollm2"
  trtllm-lite build --checkpoint_dir "$out/checkpoint" --target sm_90 --input_timing_cache "$cache" \
    --max_batch_size 64 --max_input_len 128 --max_seq_len 1024 --output_dir "$out/engines/guided-$shape"
  rm -r "$out/checkpoint"
  python3 scripts/measure_guided.py --engine_dir "$out/engines/guided-$shape" --compiled --json "$out/guided-$shape.json"
}
latency() {  # REPORT ENGINE BATCH_SIZES INPUT_LENS OUTPUT_LEN [OPTION]...
  trtllm-lite bench latency --engine_dir "$out/engines/$2" "${ceilings[@]}" \
    --batch_size "$3" --input_len "$4" --output_len "$5" --json "$out/$1.json" "${@:6}"
}
# The engines have no tokenizer. All shapes that are timed in this way have vocabularies of the same size.
bench_throughput() {  # ENGINE [OPTION]...
  [ -e "$out/tokenizer" ] || python3 scripts/random_tokenizer.py configs/models/llama-3.1-8b.json "$out/tokenizer"
  trtllm-lite bench throughput --engine_dir "$out/engines/$1" --tokenizer "$out/tokenizer" "${ceilings[@]}" "${@:2}"
}
throughput() {  # ENGINE INPUT_LEN OUTPUT_LEN NUM_REQUESTS [OPTION]...
  bench_throughput "$1" --input_len "$2" --output_len "$3" \
    --num_requests "$4" --json "$out/throughput-$2-$3.json" --kv_cache_free_gpu_memory_fraction 0.97 "${@:5}"
}
# Each draft is right with probability 0.8 if those before it are right.
drafts='"method": "synthetic", "num_speculative_tokens": 4, "synthetic_acceptance_rates": [0.8, 0.64, 0.512, 0.4096]'
speculation() {  # BATCH_SIZE NAME [OPTION]...
  bench_throughput 8b-drafts --input_len 128 --output_len 512 \
    --num_requests "$((2 * $1))" --max_batch_size "$1" --json "$out/speculation-$1-$2.json" "${@:3}"
}

adapters() {  # NAME ENGINE [OPTION]...
  bench_throughput "$2" --input_len 128 --output_len 256 \
    --num_requests 128 --json "$out/adapters-$1.json" "${@:3}"
}

for part in $parts; do
  case $part in
    tune)
      tune llama-3.1-8b 2048 8192
      tune llama-3.2-1b 512 8192
      rm -r "$out/engines/tuned"
      ;;
    build)
      build 8b llama-3.1-8b 256 8192 8448 8192
      build 1b llama-3.2-1b 32 2048 4096 2048
      build 8b-short llama-3.1-8b 2048 2048 2304 "${MAX_NUM_TOKENS:-8192}"
      build 8b-throughput llama-3.1-8b 512 2048 2304 "${MAX_NUM_TOKENS:-8192}"
      ;;
    latency)
      latency latency-8b 8b 1,4,8,16,32,64,128,256 128 129
      latency first-token-8b 8b 1 128,1024,2048,8192 2
      latency latency-1b 1b 1,8,32 128 129
      ;;
    throughput)
      throughput 8b-short 128 128 2048
      throughput 8b-throughput 128 2048 512 "${beyond_memory[@]}"
      throughput 8b-throughput 1000 1000 512 "${beyond_memory[@]}"
      throughput 8b-throughput 2048 128 512
      ;;
    speculation)
      build 8b-drafts llama-3.1-8b 64 1024 2048 2048 --max_draft_len 4
      for batch in 1 16 64; do
        speculation "$batch" plain
        speculation "$batch" always --speculative_config "{$drafts, \"enable_adaptive_verification\": false}"
        speculation "$batch" paced --speculative_config "{$drafts}"
      done
      ;;
    adapters)
      build 8b-64 llama-3.1-8b 64 1024 2048 2048
      build 8b-adapters llama-3.1-8b 64 1024 2048 2048 --max_lora_rank 16
      adapters plain 8b-64
      adapters none 8b-adapters
      adapters 16 8b-adapters --num_loras 16 --lora_rank 16
      ;;
    deterministic)
      build 8b-deterministic llama-3.1-8b 256 8192 8448 8192 --deterministic
      latency deterministic-8b 8b-deterministic 1,4,8,16,32,64,128,256 128 129
      ;;
    large)
      build 70b llama-3.1-70b 64 2048 4096 2048
      latency latency-70b 70b 1,8,64 128 129
      latency first-token-70b 70b 1 2048 2
      ;;
    start-up) start_up ;;
    guided) guided ;;
    *) echo "unknown part $part: expected tune, build, latency, throughput, speculation, adapters, deterministic, large, start-up or guided" >&2; exit 2 ;;
  esac
done
