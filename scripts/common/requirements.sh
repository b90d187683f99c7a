# What an installation from source needs of the machine, and the commands that bring what is missing. Sourced by
# environment.sh, not run.

# find_python: prints the first Python >= 3.11 among those that PYTHON names, or else those of the PATH.
find_python() {
  local candidate
  for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  die "Python 3.11 or newer is missing${PYTHON:+ (PYTHON=$PYTHON)}; set PYTHON to one, or: $(install_command python3 python3)"
}

python_version() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])'; }

# install_command DEBIAN FEDORA: prints the command that installs a package, whose name is DEBIAN or FEDORA.
install_command() {
  local sudo=
  [ "$(id -u)" = 0 ] || sudo="sudo "
  if command -v apt-get >/dev/null; then
    echo "${sudo}apt-get install $1"
  elif command -v dnf >/dev/null; then
    echo "${sudo}dnf install $2"
  else
    echo "${sudo}apt-get install $1 (Debian, Ubuntu), ${sudo}dnf install $2 (Fedora, RHEL)"
  fi
}

# require_build_tools PYTHON: ends with an error that lists what is missing of a C++20 compiler, the Python's headers
# and, if .venv has no pip yet, the Python's modules that make virtual environments.
require_build_tools() {
  local python=$1 version missing=""
  version=$(python_version "$python")
  if [ ! -x .venv/bin/pip ] && ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    missing+="- modules venv and ensurepip of Python $version: $(install_command "python$version-venv" python3-libs)"$'\n'
  fi
  if [ ! -f "$("$python" -c 'import sysconfig; print(sysconfig.get_config_var("INCLUDEPY"))')/Python.h" ]; then
    missing+="- headers of Python $version: $(install_command "python$version-dev" "python$version-devel")"$'\n'
  fi
  if ! compiles_cpp20; then
    missing+="- C++20 compiler (g++ 11 or newer; CXX names another): $(install_command g++ gcc-c++)"$'\n'
  fi
  [ -z "$missing" ] || die "an installation from source needs what this machine lacks:"$'\n'"${missing%$'\n'}"
}

# compiles_cpp20: whether the compiler that CMake takes knows C++20. g++ 10 gives __cplusplus an older value.
compiles_cpp20() {
  local candidate
  for candidate in ${CXX:-c++ g++ clang++}; do
    if command -v "$candidate" >/dev/null; then
      printf '#include <version>\n#if __cplusplus < 202002L\n#error\n#endif\n' |
        "$candidate" -std=c++20 -fsyntax-only -x c++ - 2>/dev/null
      return
    fi
  done
  return 1
}
