"""An engine for CPUs: inspected, then loaded and run as a user would."""

import io
import random
from pathlib import Path

from rich.console import Console

from tests.fuzz.engines import built_engine
from tests.unit.csrc.mutations import KINDS, changed_manifest
from trtllm_lite.engine.difference import compare_paths
from trtllm_lite.engine.page import render_page
from trtllm_lite.runtime import ModelRunner
from trtllm_lite.workflows.inspect import inspect_path

COUNT = 200


class Target:
    """The builder's engine of the tiny Llama, its documents, header or bytes changed."""

    def __init__(self, scratch: Path) -> None:
        self._engine = built_engine(scratch)

    def write(self, rng: random.Random, directory: Path) -> None:
        change = rng.choice([changed_manifest, *KINDS.values()])
        (directory / "rank0.engine").write_bytes(change(rng, self._engine))

    def read(self, directory: Path) -> None:
        inspection = inspect_path(directory)
        inspection.render(Console(file=io.StringIO(), width=80), kernels=True)
        inspection.to_dict()
        render_page(inspection)
        compare_paths(directory, directory)
        runner = ModelRunner.from_dir(directory, num_threads=1)
        try:
            runner.generate([[1, 5, 7], [260]], max_new_tokens=3)
        finally:
            runner.session.close()
