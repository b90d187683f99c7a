#!/usr/bin/env bash
# Measures SmolLM2 engines in float32 and bfloat16 on this machine beside transformers in float32, records the reports in
# configs/baselines/NAME.json, and renews the README's table; what in-flight batching brings goes to batching-NAME.json.
# Needs what scripts/test.sh installs, and an idle machine.
set -euo pipefail
cd "$(dirname "$0")/.."
name=${1:?usage: measure_cpu.sh NAME, e.g. cpu-epyc-9005-2-cores}
bin=.venv/bin
gguf=.cache/SmolLM2-135M-Instruct.Q4_1.gguf
work=.cache/measure

bash scripts/fetch_model.sh smollm2-135m
mkdir -p "$work"
for dtype in float32 bfloat16; do
  "$bin/trtllm-lite" convert --model_dir "$gguf" --output_dir "$work/checkpoint-$dtype" --dtype "$dtype" \
    --dequantize
  "$bin/trtllm-lite" build --checkpoint_dir "$work/checkpoint-$dtype" --output_dir "$work/engine-$dtype" \
    --max_batch_size 16 --max_input_len 1024 --max_seq_len 2048
  "$bin/trtllm-lite" bench latency --engine_dir "$work/engine-$dtype" --compare_transformers "$gguf" \
    --json "$work/latency-$dtype.json"
  "$bin/trtllm-lite" bench throughput --engine_dir "$work/engine-$dtype" \
    --json "$work/throughput-$dtype.json"
done
"$bin/trtllm-lite" build --checkpoint_dir "$work/checkpoint-bfloat16" --output_dir "$work/engine-batching" \
  --max_batch_size 64 --max_input_len 1024 --max_seq_len 2048
"$bin/python" scripts/measure_batching.py --engine_dir "$work/engine-batching" --json "configs/baselines/batching-$name.json"
"$bin/python" scripts/update_readme.py --record "$name" "$work"/latency-*.json "$work"/throughput-*.json
"$bin/python" scripts/check_goals.py "$work"/latency-*.json
