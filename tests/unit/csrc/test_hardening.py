"""The extension is linked and compiled so that what hostile input could exploit ends the process instead."""

import subprocess

from trtllm_lite import _core


def _readelf(option: str) -> str:
    # GNU's binutils come with every compiler that builds the extension.
    return subprocess.run(["readelf", "-W", option, _core.__file__], check=True, capture_output=True, text=True).stdout


def test_what_is_looked_up_by_the_linker_is_read_only() -> None:
    assert "BIND_NOW" in _readelf("-d")
    segments = _readelf("-l")
    assert "GNU_RELRO" in segments
    (stack,) = (line for line in segments.splitlines() if "GNU_STACK" in line)
    assert " RW " in stack  # the stack is not executable


def test_stacks_and_copies_are_guarded() -> None:
    symbols = _readelf("--dyn-syms")
    assert "__stack_chk_fail" in symbols
    assert "__memcpy_chk" in symbols or "__memset_chk" in symbols or "__read_chk" in symbols


def test_elements_of_the_standard_library_are_checked() -> None:
    assert "__glibcxx_assert_fail" in _readelf("--dyn-syms")
