#!/usr/bin/env bash
# Measures what engines of the Llama-3.2-1B and Llama-3.1-8B shapes (bfloat16, random weights) give through HTTP, and
# without it, on this machine's NVIDIA GPU: OUT/1B-http.json and so on. `scripts/update_docs.py --record_server NAME OUT`
# stores the reports and renews the documents.
#   measure_server.sh OUT [1B|8B]...
# Needs trtllm-lite with the extra serve on the PATH. The clients are four processes on the same machine.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:?usage: measure_server.sh OUT [1B|8B]...}
shift
port=${PORT:-8123}
cache=${TIMING_CACHE:-configs/timing_caches/nvidia-h200.json}
work=$(mktemp -d)
server=  # the server's process, while it runs
trap clean_up EXIT
mkdir -p "$out"
lengths=(--input_len 128 --output_len 128)

measure() {  # NAME SHAPE
  trtllm-lite build --model_config "configs/models/$2.json" --strip_plan --target sm_90 --input_timing_cache "$cache" \
    --max_batch_size 256 --max_input_len 512 --max_seq_len 1024 --max_num_tokens 8192 --output_dir "$work/engine"
  : >"$work/server.log"
  trtllm-lite serve "$1=$work/engine" --tokenizer "$work/tokenizer" --port "$port" --no_access_log \
    --no_kv_cache_block_reuse 2>>"$work/server.log" &
  server=$!
  wait_until_it_listens
  over_http "$1-http" --concurrency 256 --num_client_processes 4 --num_requests 2048
  over_http "$1-http-1" --concurrency 1 --num_requests 60
  kill "$server"
  wait "$server"
  server=
  alone throughput "$1-alone" --num_requests 2048 --max_batch_size 256
  alone serve-sim "$1-alone-1" --arrival all --concurrency 1 --num_requests 60
  rm -r "$work/engine"
}
wait_until_it_listens() {
  until grep -q '^serving at ' "$work/server.log"; do
    kill -0 "$server" 2>/dev/null || { echo "the server ended before it listened" >&2; exit 1; }
    sleep 0.2
  done
}
clean_up() {  # ends the server of a measurement that failed, and shows its output
  if [ -n "$server" ]; then
    kill "$server" 2>/dev/null || true
    wait "$server" || true
    cat "$work/server.log" >&2
  fi
  rm -rf "$work"
}
over_http() {  # REPORT OPTION...
  trtllm-lite bench serve --base_url "http://127.0.0.1:$port" --vocab_size 100000 --arrival all "${lengths[@]}" \
    --json "$out/$1.json" "${@:2}"
}
alone() {  # BENCHMARK REPORT OPTION...
  trtllm-lite bench "$1" --engine_dir "$work/engine" --tokenizer "$work/tokenizer" "${lengths[@]}" \
    --json "$out/$2.json" "${@:3}"
}

python3 scripts/random_tokenizer.py configs/models/llama-3.1-8b.json "$work/tokenizer"
for shape in ${*:-1B 8B}; do
  case $shape in
    1B) measure 1B llama-3.2-1b ;;
    8B) measure 8B llama-3.1-8b ;;
    *) echo "unknown shape $shape: expected 1B or 8B" >&2; exit 2 ;;
  esac
done
