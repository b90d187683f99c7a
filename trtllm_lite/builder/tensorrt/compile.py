"""Hands a network to TensorRT, or takes an earlier result for the same network from the cache."""

import json
import mmap
import shutil
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from trtllm_lite import _core
from trtllm_lite.builder.job import BuildJob
from trtllm_lite.builder.tensorrt.apart import build_apart
from trtllm_lite.builder.tensorrt.layers import layers_of
from trtllm_lite.builder.tensorrt.library import Library
from trtllm_lite.builder.tensorrt.request import write_request
from trtllm_lite.builder.tensorrt.worker import IMAGE
from trtllm_lite.common.files import atomic_directory, cache_directory
from trtllm_lite.common.scratch import scratch_directory
from trtllm_lite.engine.format import PRODUCER
from trtllm_lite.engine.manifest import Tactic
from trtllm_lite.engine_cache.store import NETWORKS, locked, touch, trim

_FACTS = "facts.json"


@dataclass(frozen=True)
class Compiled:
    """``image`` is the serialized engine, ``activation_bytes`` the memory that it takes besides weights and caches."""

    image: memoryview
    activation_bytes: int
    layers: tuple[Tactic, ...]


def compile_network(job: BuildJob, library: Library) -> Compiled:
    """Return the engine that TensorRT builds for the job's targets from its graph, which :mod:`passes` has rewritten.

    The cache keeps engines by network (weights included) and build options; an entry is as large as the weights, and
    counts against the cache's limit. Raises BuildError, OutputError, EngineError (weights).
    """
    with scratch_directory("tensorrt") as directory:
        progress = partial(job.report, "compile")
        key = write_request(directory, job.graph, job.limits, job.targets, library, progress)
        entry = cache_directory(NETWORKS) / key
        with locked(entry, job.checkpoint.config.architecture):
            compiled = _cached(entry)
            if compiled is None:
                shutil.rmtree(entry, ignore_errors=True)
                _make(directory, library, entry)
                compiled = _cached(entry)
                trim(keep=(entry,))
            touch(entry)
    assert compiled is not None
    return compiled


def _make(directory: Path, library: Library, entry: Path) -> None:
    """Build what the request in ``directory`` asks for into ``entry``, which appears whole or not at all."""
    log = build_apart(directory, library.package)
    with atomic_directory(entry, _FACTS) as made:
        shutil.move(directory / IMAGE, made / IMAGE)
        facts = {
            "producer": PRODUCER,
            "crc32c": _core.crc32c(_mapped(made / IMAGE)),
            "activation_bytes": log.activation_bytes(),
            "layers": [asdict(layer) for layer in layers_of(log.lines)],
        }
        (made / _FACTS).write_text(json.dumps(facts))


def _cached(entry: Path) -> Compiled | None:
    """Return the entry of the cache; None if it is absent or damaged."""
    try:
        facts = json.loads((entry / _FACTS).read_bytes())
        image = _mapped(entry / IMAGE)
        if _core.crc32c(image) != facts["crc32c"]:
            return None
        layers = tuple(Tactic(**layer) for layer in facts["layers"])
        return Compiled(image, facts["activation_bytes"], layers)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _mapped(path: Path) -> memoryview:
    """Map the content of a file; the mapping outlives the file."""
    with open(path, "rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
