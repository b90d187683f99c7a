#!/usr/bin/env bash
# Times the builds of one checkpoint for all backends, in 16 bits, FP8 and 4 bits: first with empty caches, then again.
# Needs no GPU. It writes a line for each build, its seconds of wall clock and of all cores, and the sums.
#   measure_builds.sh CKPT
set -euo pipefail
checkpoint=${1:?usage: measure_builds.sh CKPT}
command=${TRTLLM_LITE:-trtllm-lite}
builds=(
  "native sm_90,sm_120 full_prec"
  "native sm_90 fp8_rowwise" # no FP8 products for sm_120
  "native sm_90,sm_120 int4_wo --group_size 64"
  "tensorrt sm_89,sm_120 full_prec"
  "tensorrt sm_89,sm_120 fp8_rowwise"
  "tensorrt sm_89,sm_120 int4_wo --group_size 64"
  "native cpu full_prec"
  "native cpu fp8_rowwise"
  "native cpu int4_wo --group_size 64"
)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export XDG_CACHE_HOME=$work/cache
TIMEFORMAT='%R %U %S'
measured() { # CACHES BUILD: runs the build, and prints its times
  local backend target scheme times
  read -r backend target scheme <<<"$2"
  # shellcheck disable=SC2086 # the scheme may have options
  times=$({ time "$command" build --checkpoint_dir "$checkpoint" --output_dir "$work/engine" --backend "$backend" \
    --target "$target" --qformat $scheme >"$work/output" 2>&1; } 2>&1) || {
    cat "$work/output" >&2
    exit 1
  }
  awk -v name="$1 $2" '{ printf "%-52s %7.1f s %7.1f s of cores\n", name, $1, $2 + $3 }' <<<"$times"
}

for caches in cold warm; do
  for build in "${builds[@]}"; do
    measured "$caches" "$build"
  done | tee "$work/times"
  awk -v name="$caches, in all" '{ wall += substr($0, 54, 7); cores += substr($0, 64, 7) }
    END { printf "%-52s %7.1f s %7.1f s of cores\n", name, wall, cores }' "$work/times"
done
