#!/usr/bin/env bash
# Goes from a fresh clone to a streamed answer: installs into .venv, fetches SmolLM2, converts, builds, generates.
# A wheel of this version is installed where dist/ has one (scripts/build_wheels.sh); else, or with --from_source, this
# checkout is compiled. A second run reuses what is there.
set -euo pipefail
source "$(dirname "$0")/common/environment.sh"

from_source=""
case "${1:-}" in
  "") ;;
  --from_source) from_source=1 ;;
  *) die "expected --from_source or nothing, found $1" ;;
esac

# run_part TITLE OUTPUT COMMAND...: runs the command unless OUTPUT exists, and records how long it took.
report=""
run_part() {
  local title=$1 output=$2 begin end
  shift 2
  say "$title"
  begin=$(date +%s.%N)
  if [ -n "$output" ] && [ -e "$output" ]; then
    echo "$output is there already"
  else
    "$@"
  fi
  end=$(date +%s.%N)
  report+=$(printf '%8.1f s  %s' "$(echo "$end $begin" | awk '{print $1 - $2}')" "$title")$'\n'
}

checkpoint=.cache/smollm2/checkpoint
engine=engines/smollm2
trtllm_lite=.venv/bin/trtllm-lite

# A checkout that is installed stays so; a wheel would replace it.
install() {
  if [ -n "$from_source" ] || compgen -G '.venv/installed-*' >/dev/null || ! install_wheel "$1"; then
    echo "compiling this checkout"
    install_checkout "$1"
  fi
}

run_part "install into .venv" "" install "build$(cuda_extra)"
run_part "fetch SmolLM2-135M-Instruct" .cache/SmolLM2-135M-Instruct.Q4_1.gguf bash scripts/fetch_model.sh smollm2-135m
run_part "convert" $checkpoint $trtllm_lite convert --model_dir .cache/SmolLM2-135M-Instruct.Q4_1.gguf \
  --output_dir $checkpoint --dtype bfloat16
run_part "build" $engine $trtllm_lite build --checkpoint_dir $checkpoint --output_dir $engine \
  --max_batch_size 8 --max_input_len 1024 --max_seq_len 2048
run_part "generate" "" $trtllm_lite generate --engine_dir $engine --chat --max_new_tokens 64 \
  --prompt "What is an ahead-of-time compiler? Answer in one sentence."

say "what took how long"
printf '%s' "$report"
cat <<EOF

Next: $trtllm_lite inspect $engine
      $trtllm_lite generate --engine_dir $engine --chat --prompt "…"
EOF
