#!/usr/bin/env bash
# dependencies.sh oldest|newest [ARGUMENT…]: runs the tests in a fresh copy of this checkout with the oldest, or newest,
# versions of dependencies that pyproject.toml allows. Arguments go to test.sh. The oldest need uv; PYTHON names another
# Python.
set -euo pipefail
source "$(dirname "$0")/../common/environment.sh"

case ${1:-} in
  oldest) command -v uv >/dev/null || die "uv is missing: pip install uv" ;;
  newest) ;;
  *) die "expected oldest or newest, found '${1:-}'" ;;
esac
which=$1
shift
python=$(find_python) || exit 1
copy=.cache/tiers/$which

say "copy this checkout"
rm -rf $copy
mkdir -p $copy
git ls-files -z --cached --others --exclude-standard | tar --null --create --files-from - | tar --extract --directory $copy
git -C $copy init --quiet # otherwise git would take the copy for a part of this checkout
mkdir $copy/.cache # for links to the fetched models
for fetched in .cache/*.gguf .cache/all-MiniLM-L6-v2; do
  [ ! -e "$fetched" ] || ln -s "$PWD/$fetched" "$copy/.cache/"
done

unset CI # the lock file of CI has other versions
export PYTHON=$python
if [ "$which" = oldest ]; then
  say "the oldest versions for Python $(python_version "$python")"
  uv pip compile pyproject.toml --extra test --resolution lowest-direct --python "$python" --no-header --no-annotate \
    --quiet --output-file $copy/.cache/constraints.txt
  export PIP_CONSTRAINT=$PWD/$copy/.cache/constraints.txt
fi
cd $copy
exec bash scripts/test.sh "$@"
