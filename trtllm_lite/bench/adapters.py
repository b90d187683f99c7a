"""Makes adapters of random numbers for benchmarks; they are never written to a file."""

from pathlib import Path

import numpy as np

from trtllm_lite.bench.workload import AdaptedWorkload, lora_of
from trtllm_lite.engine.manifest import Manifest
from trtllm_lite.errors import ArgumentError, LimitError
from trtllm_lite.runtime.core import core
from trtllm_lite.runtime.lora.peft import Pair
from trtllm_lite.runtime.session.engine_dir import engine_path
from trtllm_lite.runtime.session.session import Session

_DEVIATION = 0.02  # standard deviation of the elements, as of random weights


def check_adapters(manifest: Manifest, workload: AdaptedWorkload) -> None:
    """Raise ArgumentError if the engine takes no adapters, LimitError if it takes none of the workload's rank."""
    lora = manifest.lora
    if lora is None:
        raise ArgumentError(
            f"num_loras is {workload.num_loras}, and this engine takes no adapters: build it with --max_lora_rank"
        )
    if workload.lora_rank > lora.max_rank:
        raise LimitError(
            f"lora_rank is {workload.lora_rank}, above max_lora_rank {lora.max_rank} of this engine: lower it, or "
            "build the engine with a larger --max_lora_rank"
        )


def make_up_adapters(session: Session, engine_dir: str | Path, workload: AdaptedWorkload) -> None:
    """Give ``session`` the adapters that the requests of ``workload`` ask for, with matrices for every projection.

    They differ only in name: the cost of a step depends on where their matrices lie, not on the values.
    """
    adapters, native = session.check_takes_adapters("num_loras"), core()
    engine = native.Engine(str(engine_path(Path(engine_dir), rank=0)))
    _, shapes = native.adapter_shapes(engine)
    random, pairs = np.random.default_rng(workload.seed), {}
    rank = workload.lora_rank
    for number, (num_in, num_out) in enumerate(shapes):
        a, b = (random.standard_normal(shape, np.float32) for shape in ((rank, num_in), (num_out, rank)))
        pairs[number] = Pair(f"projection {number}", a * np.float32(_DEVIATION), b, _DEVIATION)
    for number in range(workload.num_loras):
        lora = lora_of(number)
        adapters.keep(lora, native.Adapter(engine, pairs, lora.lora_name.encode()))
