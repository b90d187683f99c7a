"""An engine does not survive a fork: using it in the child is an error at once, and the child exits quietly."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trtllm_lite import LLM

FORKED = """
import multiprocessing, os, sys
from trtllm_lite import LLM, SamplingParams
from trtllm_lite.errors import EngineError
from trtllm_lite.runtime.session.notifier import Notifier

llm = LLM(sys.argv[1])
params = SamplingParams(max_tokens=4, ignore_eos=True)
unfinished = Notifier()

def use() -> None:
    for attempt in (lambda: llm.generate([1, 2, 3], params), llm.get_stats, lambda: unfinished.wait_until(bool)):
        try:
            attempt()
            print("no error", flush=True)
        except EngineError as error:
            print("opened in another process" in str(error), flush=True)

child = os.fork()
if child == 0:
    use()
    sys.exit(0)
print("status", os.waitpid(child, 0)[1], flush=True)
process = multiprocessing.get_context("fork").Process(target=use)
process.start()
process.join()
print("status", process.exitcode, flush=True)
print("parent", len(llm.generate([1, 2, 3], params).outputs[0].token_ids))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_an_engine_does_not_follow_into_a_fork(llm: LLM, tmp_path: Path) -> None:
    llm.save(tmp_path / "engine")
    run = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKED, str(tmp_path / "engine")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    in_child = ["True"] * 3 + ["status 0"]
    assert run.stdout.splitlines() == [*in_child, *in_child, "parent 4"], run.stderr
    assert run.stderr == ""
