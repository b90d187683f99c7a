"""A process continues when its standard streams are full, closed or broken."""

import json
import os
import subprocess
import sys

import pytest

PROGRAM = """
import os, sys
from trtllm_lite.serve.standard_streams import drop_what_stderr_does_not_take
drop_what_stderr_does_not_take()
for _ in range(5):
    print("x" * 100_000, file=sys.stderr, flush=True)
    sys.stderr.write("y")
opened = os.open(os.devnull, os.O_RDONLY)
assert opened > 2, opened
sys.exit(7)
"""
CLOSED = 'exec "$0" -c "$1" 2>&-', 'exec "$0" -c "$1" <&- >&- 2>&-'


@pytest.mark.parametrize("shell", ['exec "$0" -c "$1" 2>/dev/full', *CLOSED])
def test_a_full_or_closed_stderr_ends_nothing(shell):
    ended = subprocess.run(["sh", "-c", shell, sys.executable, PROGRAM], timeout=60, check=False)
    assert ended.returncode == 7


@pytest.mark.parametrize("is_read", [True, False])
def test_a_pipe_that_is_full_or_broken_holds_up_nothing(is_read):
    reading, writing = os.pipe()
    if not is_read:
        os.close(reading)
    ended = subprocess.run([sys.executable, "-c", PROGRAM], stderr=writing, timeout=60, check=False)
    os.close(writing)
    assert ended.returncode == 7
    if is_read:
        with os.fdopen(reading, "rb") as file:
            assert file.read(1000) == b"x" * 1000


def test_what_stderr_takes_is_all_there():
    ended = subprocess.run([sys.executable, "-c", PROGRAM.replace("100_000", "100")], capture_output=True, check=False)
    assert ended.stderr.decode() == ("x" * 100 + "\ny") * 5


def test_json_has_an_object_for_each_line():
    program = PROGRAM.replace("take()", "take(as_json=True)").replace("100_000", "100")
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    objects = [json.loads(line) for line in ended.stderr.splitlines()]
    assert [entry["message"] for entry in objects] == ["x" * 100, *["y" + "x" * 100] * 4]
    assert all(entry["time"].endswith("Z") for entry in objects)


def test_the_error_that_ends_a_server_is_an_object():
    command = [sys.executable, "-m", "trtllm_lite", "serve", "/no/such \u00e9ngine", "--log_format", "json"]
    ended = subprocess.run(command, capture_output=True, check=False)
    (entry,) = map(json.loads, ended.stderr.splitlines())
    assert ended.returncode == 1
    assert "/no/such \u00e9ngine" in entry["message"]
