#!/usr/bin/env bash
# Measures a mixture of experts in the shape of Granite 3.0 1B-A400M (random weights, in the blocks of its GGUF file) on
# this machine's CPU, beside llama.cpp on the same file in the same run: OUT/latency-Q4_0.json and so on.
#   measure_cpu_experts.sh OUT
# Needs what scripts/test.sh installs, and an idle machine.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/common/llama_cpp_python.sh
out=${1:?usage: measure_cpu_experts.sh OUT}
bin=.venv/bin
mkdir -p "$out"
llama=$(llama_cpp_python "$out")

for type in Q4_0 Q8_0; do
  "$bin/python" scripts/made_up_granite.py "$type" "$out/$type.gguf"
  "$bin/trtllm-lite" convert --model_dir "$out/$type.gguf" --output_dir "$out/checkpoint" --dtype bfloat16
  "$bin/trtllm-lite" build --checkpoint_dir "$out/checkpoint" --output_dir "$out/engine" \
    --max_batch_size 16 --max_input_len 1024 --max_seq_len 2048
  "$bin/trtllm-lite" bench latency --engine_dir "$out/engine" --batch_size 1 --compare_llama_cpp "$out/$type.gguf" \
    --llama_cpp_python "$llama" --json "$out/latency-$type.json"
  rm -r "$out/checkpoint" "$out/engine" "$out/$type.gguf"
done
