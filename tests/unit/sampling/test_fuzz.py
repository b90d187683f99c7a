"""fuzz_sampling.cc under the sanitizers."""

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

CSRC = Path(__file__).parents[3] / "trtllm_lite" / "csrc"
SOURCES = [Path(__file__).with_name("fuzz_sampling.cc"), *sorted((CSRC / "sampling").glob("*.cc"))]
HEADERS = sorted((CSRC / "sampling").glob("*.h"))


def _content_key() -> str:
    """A name that changes with any of the files, so that pytest's cache directory serves later sessions too."""
    digest = hashlib.sha256()
    for path in [*SOURCES, *HEADERS]:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_random_use_is_clean(pytestconfig, sanitizers):
    program = pytestconfig.cache.mkdir(f"sampling-fuzz-{_content_key()}") / sanitizers
    compiler = [os.environ.get("CXX", "g++"), "-std=c++20", "-O1", "-g1", "-pthread", "-I", CSRC]
    flags = [f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all"]
    if not program.exists():
        unfinished = program.with_suffix(f".{os.getpid()}")
        subprocess.run([*compiler, *flags, *SOURCES, "-o", unfinished], check=True)
        unfinished.rename(program)
    result = subprocess.run([program, "1", "150"], capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
