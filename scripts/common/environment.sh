# Shared by quickstart.sh and test.sh: a virtual environment in .venv holding this checkout, installed once per change.
# Sourced, not run. Needs what scripts/common/requirements.sh asks for; cmake and ninja come as wheels when absent.

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export PIP_DISABLE_PIP_VERSION_CHECK=1
unset PYTHONDONTWRITEBYTECODE # each process would compile again what it imports

say() { printf '\033[1m== %s\033[0m\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

source scripts/common/requirements.sh

# Changes when anything that the installed package is made of changes. Python sources are linked, not copied, so only
# the list of their names counts.
source_fingerprint() {
  {
    cat pyproject.toml CMakeLists.txt plugins/*.py trtllm_lite/common/vocabulary.py trtllm_lite/engine/*.py trtllm_lite/request_fields/*.py trtllm_lite/csrc/*.py
    find trtllm_lite plugins \( -name '*.cc' -o -name '*.h' -o -name slot.cuh -o -name rank_table.cuh -o -name '*.toml' -o -name '*.cmake' \) -print0 | sort -z | xargs -0 cat
    find trtllm_lite plugins -name '*.py' | sort
  } | sha256sum | cut -c1-16
}

# Prints ",cuda" on machines with an NVIDIA driver: the extra that engines for their GPUs need.
cuda_extra() {
  if ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1'; then echo ",cuda"; fi
}

# install_checkout EXTRA: makes .venv and installs this checkout with the extra, or does nothing if that is done.
install_checkout() {
  local extra=$1 python=.venv/bin/python wanted stamp testing=OFF
  stamp=".venv/installed-$extra-$(source_fingerprint)"
  if [ ! -x $python ]; then
    rm -f .venv/installed-* # made by a Python that is gone
    python=$(find_python) || exit 1
  elif [ -n "${PYTHON:-}" ]; then
    wanted=$(find_python) || exit 1
    [ "$(python_version "$wanted")" = "$(python_version $python)" ] ||
      die ".venv is for Python $(python_version $python), and PYTHON is $wanted: remove .venv, or unset PYTHON"
  fi
  [ ! -f "$stamp" ] || return 0
  require_build_tools "$python"
  [ -x .venv/bin/pip ] || "$python" -m venv .venv || die "there is no virtual environment in .venv: see above"
  # The test extra comes with trtllm_lite._testing. (The option is always given, because CMake remembers its last
  # value.)
  [ "$extra" != test ] || testing=ON
  # CI takes the versions and files of the lock file, everybody else what pyproject.toml allows.
  if [ -n "${CI:-}" ] && [ "$extra" = test ]; then
    .venv/bin/pip install --quiet --no-compile --no-deps --require-hashes --requirement requirements/test.txt ||
      die "the packages of requirements/test.txt could not be installed: see above"
  fi
  # Python compiles what it imports, a quarter of all that is installed; pip would compile everything, on one core.
  .venv/bin/pip install --quiet --no-compile --editable ".[$extra]" --config-settings build-dir=build/cmake \
    --config-settings cmake.define.TRTLLM_LITE_TESTING="$testing" || die "this checkout could not be installed: see above"
  rm -f .venv/installed-"$extra"-*
  touch "$stamp"
}

# install_wheel EXTRA: installs the wheel of this version in dist/ with the extra into .venv; false where there is none
# for this Python and machine. (The package index is not asked, because this project does not own its name there yet.)
install_wheel() {
  local extra=$1 version found status=0
  version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
  compgen -G "dist/trtllm_lite-$version-*.whl" >/dev/null || return 1
  [ -x .venv/bin/python ] || "$(find_python)" -m venv .venv || die "there is no virtual environment in .venv: see above"
  found=$(mktemp -d)
  .venv/bin/pip download --quiet --no-index --no-deps --find-links dist --dest "$found" "trtllm_lite==$version" \
    >/dev/null 2>&1 && .venv/bin/pip install --quiet --no-compile "$(echo "$found"/*.whl)[$extra]" || status=1
  rm -rf "$found"
  return $status
}
