#!/usr/bin/env bash
# dependencies.sh oldest|newest [ARGUMENT…]: runs the tests in a fresh copy of this checkout with the oldest, or newest,
# versions of dependencies that pyproject.toml allows. Arguments go to test.sh. Needs uv; PYTHON names another Python.
set -euo pipefail
source "$(dirname "$0")/../common.sh"

case ${1:-} in
  oldest) resolution=lowest-direct ;;
  newest) resolution=highest ;;
  *) die "expected oldest or newest, found '${1:-}'" ;;
esac
which=$1
shift
command -v uv >/dev/null || die "uv is missing: pip install uv"
python=$(find_python) || exit 1
copy=.cache/tiers/$which

say "copy this checkout"
rm -rf $copy
mkdir -p $copy
git ls-files -z --cached --others --exclude-standard | tar --null --create --files-from - | tar --extract --directory $copy
mkdir $copy/.cache # with the models that were fetched
for fetched in .cache/*.gguf .cache/all-MiniLM-L6-v2; do
  [ ! -e "$fetched" ] || ln -s "$PWD/$fetched" "$copy/.cache/"
done

say "the $which versions for Python $(python_version "$python")"
# Torch's builds for CPUs and for GPUs need different packages; pyproject.toml names its version.
uv pip compile pyproject.toml --extra test --resolution $resolution --python "$python" --excludes <(echo torch) \
  --no-header --no-annotate --quiet --output-file $copy/.cache/constraints.txt

cd $copy
unset CI # whose lock file has other versions
export PIP_CONSTRAINT=$PWD/.cache/constraints.txt PYTHON=$python
exec bash scripts/test.sh "$@"
