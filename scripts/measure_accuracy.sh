#!/usr/bin/env bash
# Measures the perplexity of SmolLM2 quantized in each way, on this machine's CPU, over 51,150 tokens of the text that
# `trtllm-lite eval` reads by default, which is not the text of calibration; records it in
# configs/baselines/accuracy-smollm2-135m.json, and renews the documents' table. Each way takes minutes:
# `measure_accuracy.sh NAME…` measures only those named; a way whose result is in .cache/accuracy is not measured again.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=.venv/bin/trtllm-lite work=.cache/accuracy
names=("$@")
[ ${#names[@]} -gt 0 ] || names=(bf16 int8_wo int8_sq fp8_rowwise fp8_rowwise_gptq \
  fp8 fp8_gptq kv_int8 kv_fp8 kv_int8_keys_16 kv_fp8_keys_16 int4_wo int4_awq int4_gptq int4_gptq_int8_wo)

bash scripts/fetch_model.sh smollm2-135m
mkdir -p "$work"
[ -d "$work/checkpoint" ] || "$bin" convert --model_dir .cache/SmolLM2-135M-Instruct.Q4_1.gguf \
  --output_dir "$work/checkpoint" --dtype bfloat16 --dequantize
for name in "${names[@]}"; do
  [ -f "$work/$name.json" ] && continue
  checkpoint=$work/$name keys=()
  case $name in
    bf16) checkpoint=$work/checkpoint ;;
    kv_*_keys_16)
      keys=(--key_cache_dtype bfloat16) cache=${name#kv_}
      options=(--kv_cache_dtype "${cache%_keys_16}" "${keys[@]}")
      ;;
    kv_*) options=(--kv_cache_dtype "${name#kv_}") ;;
    int4_gptq_int8_wo) options=(--autoq_format int4_gptq,int8_wo --auto_quantize_bits 4.75 --group_size 64) ;;
    int4_*) options=(--qformat "$name" --group_size 64) ;;
    *) options=(--qformat "$name") ;;
  esac
  [ "$name" = bf16 ] || "$bin" quantize --checkpoint_dir "$work/checkpoint" --output_dir "$checkpoint" "${options[@]}"
  "$bin" build --checkpoint_dir "$checkpoint" --output_dir "$work/engine" --max_batch_size 1 --max_input_len 1024 \
    --max_seq_len 1024 --max_num_tokens 512 --gather_context_logits "${keys[@]}"
  "$bin" eval --engine_dir "$work/engine" --window 1024 --max_tokens 51200 --json >"$work/partial"
  mv "$work/partial" "$work/$name.json"
done
.venv/bin/python scripts/update_docs.py --record_accuracy smollm2-135m --commit "$(git rev-parse --short=10 HEAD)" \
  $(printf "$work/%s.json " "${names[@]}")
