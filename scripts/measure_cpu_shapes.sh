#!/usr/bin/env bash
# Measures a mixture of experts (Granite 3.0 1B-A400M) and a hybrid (Qwen3.5 0.8B) on this machine's CPU, in the blocks of
# GGUF files of their shapes with random weights, beside llama.cpp on the same file in the same run:
# OUT/latency-qwen3.5-0.8b-Q4_0.json and so on.
#   measure_cpu_shapes.sh OUT
# Needs what scripts/test.sh installs, and an idle machine.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/common/llama_cpp_python.sh
out=${1:?usage: measure_cpu_shapes.sh OUT}
bin=.venv/bin
mkdir -p "$out"
llama=$(llama_cpp_python "$out")

for shape in granite-3.0-1b-a400m qwen3.5-0.8b; do
  for type in Q4_0 Q8_0; do
    "$bin/python" scripts/made_up_gguf.py "$shape" "$type" "$out/model.gguf"
    "$bin/trtllm-lite" convert --model_dir "$out/model.gguf" --output_dir "$out/checkpoint" --dtype bfloat16
    "$bin/trtllm-lite" build --checkpoint_dir "$out/checkpoint" --output_dir "$out/engine" \
      --max_batch_size 16 --max_input_len 1024 --max_seq_len 2048
    "$bin/trtllm-lite" bench latency --engine_dir "$out/engine" --batch_size 1 --compare_llama_cpp "$out/model.gguf" \
      --llama_cpp_python "$llama" --json "$out/latency-$shape-$type.json"
    rm -r "$out/checkpoint" "$out/engine" "$out/model.gguf"
  done
done
