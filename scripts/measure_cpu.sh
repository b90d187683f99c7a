#!/usr/bin/env bash
# Measures SmolLM2 engines in float32, in bfloat16, and in the blocks of 4 bits of its GGUF file, on this machine beside
# transformers in float32 and llama.cpp, and a file of random blocks of 4 bits in the shape of Mistral 7B (13 GB of disk)
# beside llama.cpp; records the reports in configs/baselines/NAME.json, and renews the documents'
# table; batching-NAME.json records the gain of in-flight batching. Needs what scripts/test.sh installs, and an idle
# machine. llama-cpp-python is built into an environment of its own (scripts/common/llama_cpp_python.sh).
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/common/llama_cpp_python.sh
name=${1:?usage: measure_cpu.sh NAME, e.g. cpu-xeon-amx-2-cores}
bin=.venv/bin
gguf=.cache/SmolLM2-135M-Instruct.Q4_1.gguf
work=.cache/measure

bash scripts/fetch_model.sh smollm2-135m
mkdir -p "$work"
llama=$(llama_cpp_python "$work")

measure() {  # NAME, arguments of convert
  local name=$1
  shift
  "$bin/trtllm-lite" convert --model_dir "$gguf" --output_dir "$work/checkpoint-$name" "$@"
  "$bin/trtllm-lite" build --checkpoint_dir "$work/checkpoint-$name" --output_dir "$work/engine-$name" \
    --max_batch_size 16 --max_input_len 1024 --max_seq_len 2048
  "$bin/trtllm-lite" bench latency --engine_dir "$work/engine-$name" --compare_transformers "$gguf" \
    --compare_llama_cpp "$gguf" --llama_cpp_python "$llama" --json "$work/latency-$name.json"
  "$bin/trtllm-lite" bench throughput --engine_dir "$work/engine-$name" --json "$work/throughput-$name.json"
}
measure float32 --dtype float32 --dequantize
measure bfloat16 --dtype bfloat16 --dequantize
measure blocks --dtype bfloat16
"$bin/python" scripts/random_gguf.py "$gguf" "$work/7b.gguf"
"$bin/trtllm-lite" convert --model_dir "$work/7b.gguf" --output_dir "$work/checkpoint-7b" --dtype bfloat16
"$bin/trtllm-lite" build --checkpoint_dir "$work/checkpoint-7b" --output_dir "$work/engine-7b" \
  --max_batch_size 1 --max_input_len 256 --max_seq_len 512
"$bin/trtllm-lite" bench latency --engine_dir "$work/engine-7b" --input_len 128 --output_len 33 --repeats 2 \
  --compare_llama_cpp "$work/7b.gguf" --llama_cpp_python "$llama" --json "$work/latency-7b.json"
rm -r "$work/7b.gguf" "$work/checkpoint-7b" "$work/engine-7b"
"$bin/trtllm-lite" build --checkpoint_dir "$work/checkpoint-bfloat16" --output_dir "$work/engine-batching" \
  --max_batch_size 64 --max_input_len 1024 --max_seq_len 2048
"$bin/python" scripts/measure_batching.py --engine_dir "$work/engine-batching" --json "configs/baselines/batching-$name.json"
"$bin/python" scripts/update_docs.py --record "$name" "$work"/latency-*.json "$work"/throughput-*.json
"$bin/python" scripts/check_goals.py "$work"/latency-*.json
