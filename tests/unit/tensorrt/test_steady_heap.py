"""The heap of the process in which TensorRT builds: addresses that neither other threads nor the kernel decide."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trtllm_lite import _core

_PROGRAM = """
import ctypes, json, threading
libc = ctypes.CDLL(None)
P, N = ctypes.c_void_p, ctypes.c_size_t
for name, arguments in {"malloc": [N], "calloc": [N, N], "realloc": [P, N], "memalign": [N, N]}.items():
    function = getattr(libc, name)
    function.restype, function.argtypes = P, arguments
libc.free.argtypes = [P]
found = {}

def fill():
    sizes = [0, 1, 48, 49, 1000, 4096, 70_000, 3 << 20]
    starts = [libc.malloc(size) for size in sizes]
    for number, (start, size) in enumerate(zip(starts, sizes)):
        ctypes.memset(start, number + 1, size)
    found["intact"] = all(ctypes.string_at(start, size) == bytes([number + 1]) * size
                          for number, (start, size) in enumerate(zip(starts, sizes)))
    libc.free(starts[5])
    found["own block again"] = libc.malloc(4090) == starts[5]
    grown = libc.realloc(starts[4], 100_000)
    found["grown"] = ctypes.string_at(grown, 1000) == bytes([5]) * 1000
    libc.free(starts[7])
    zeros = libc.calloc(3, 1 << 20)
    found["zeros"] = zeros == starts[7] and ctypes.string_at(zeros, 3 << 20) == bytes(3 << 20)
    aligned = [libc.memalign(alignment, 100) for alignment in (16, 64, 4096, 1 << 21)]
    found["aligned"] = [start % alignment for start, alignment in zip(aligned, (16, 64, 4096, 1 << 21))]
    libc.free(aligned[2])
    found["none so large"] = libc.malloc(1 << 62) is None
    found["addresses"] = [*starts, *aligned]
    found["kept"] = libc.malloc(5000)

def free_of_other():
    libc.free(found["kept"])

def allocate():
    found["elsewhere"] = libc.malloc(5000)

for work in (fill, free_of_other, allocate):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def runs() -> list[dict[str, Any]]:
    """What the program finds in two processes."""
    heap = str(Path(_core.__file__).with_name("steady_heap.so"))
    command = [sys.executable, "-S", "-s", "-P", "-c", _PROGRAM]
    environment = {"LD_PRELOAD": heap, "PYTHONHASHSEED": "0"}
    outputs = [subprocess.run(command, env=environment, capture_output=True, check=True).stdout for _ in range(2)]
    return [json.loads(output) for output in outputs]


def test_addresses_are_the_same_in_every_process(runs: list[dict[str, Any]]) -> None:
    assert runs[0] == runs[1]


def test_blocks_hold_what_is_written_and_are_used_again(runs: list[dict[str, Any]]) -> None:
    found = runs[0]
    assert found["intact"]
    assert found["own block again"]
    assert found["grown"]
    assert found["zeros"]
    assert found["aligned"] == [0, 0, 0, 0]
    assert found["none so large"]
    assert len({*found["addresses"]}) == len(found["addresses"])


def test_a_block_that_another_thread_frees_is_not_used_again(runs: list[dict[str, Any]]) -> None:
    assert runs[0]["elsewhere"] != runs[0]["kept"]
