"""An engine for GPUs: inspected, and read as the runtime does before it asks for a device."""

import io
import json
import random
from pathlib import Path

from rich.console import Console

from tests.fuzz.documents import mutate
from tests.fuzz.engines import built_engine
from tests.unit.cuda.toy_engine import VOCAB, make_toy_engine, to_bytes
from trtllm_lite._core import Engine
from trtllm_lite.engine.difference import compare_paths
from trtllm_lite.engine.page import render_page
from trtllm_lite.workflows.inspect import inspect_path

COUNT = 200


class Target:
    """The toy engine, described as a model that the builder knows."""

    def __init__(self, scratch: Path) -> None:
        self._engine = make_toy_engine()
        self._engine.manifest["model"] = built_engine(scratch).manifest["model"] | {"vocab_size": VOCAB}

    def write(self, rng: random.Random, directory: Path) -> None:
        engine = self._engine.copy()
        engine.fix_modules()
        # A mutation must not move a part into itself, which two places in the toy may share.
        engine.plan, engine.manifest = (json.loads(json.dumps(part)) for part in (engine.plan, engine.manifest))
        for _ in range(rng.choice((1, 1, 2, 3))):
            mutate(rng, rng.choice((engine.plan, engine.plan, engine.manifest)))
        (directory / "rank0.engine").write_bytes(to_bytes(engine))

    def read(self, directory: Path) -> None:
        inspection = inspect_path(directory)
        inspection.render(Console(file=io.StringIO(), width=80), kernels=True)
        render_page(inspection)
        compare_paths(directory, directory)
        Engine(str(directory / "rank0.engine"))
