#!/usr/bin/env bash
# Times the builds of one checkpoint for all backends, in 16 bits, FP8 and 4 bits: first with empty caches, then again.
# Needs no GPU. It writes a line for each build, its seconds of wall clock and of all cores, and the sums.
#   measure_builds.sh CKPT
set -euo pipefail
checkpoint=${1:?usage: measure_builds.sh CKPT}
command=${TRTLLM_LITE:-trtllm-lite}
schemes=(full_prec fp8_rowwise int4_wo)
places=("native sm_90,sm_120" "tensorrt sm_89,sm_120" "native cpu")

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export XDG_CACHE_HOME=$work/cache
TIMEFORMAT='%R %U %S'
measured() { # NAME COMMAND...: runs it, and prints its times
  local name=$1 times
  shift
  times=$({ time "$@" >"$work/output" 2>&1 || { cat "$work/output" >&2; exit 1; }; } 2>&1)
  awk -v name="$name" '{ printf "%-32s %7.1f s %7.1f s of cores\n", name, $1, $2 + $3 }' <<<"$times"
}

for caches in cold warm; do
  for place in "${places[@]}"; do
    for scheme in "${schemes[@]}"; do
      read -r backend target <<<"$place"
      measured "$caches $backend $target $scheme" "$command" build --checkpoint_dir "$checkpoint" \
        --output_dir "$work/engine" --backend "$backend" --target "$target" --qformat "$scheme"
    done
  done | tee "$work/times"
  awk -v name="$caches, in all" '{ for (i = 1; i < NF; i++) if ($(i + 1) == "s" && !seen[NR]++) sum += $i }
    END { printf "%-32s %7.1f s\n", name, sum }' "$work/times"
done
