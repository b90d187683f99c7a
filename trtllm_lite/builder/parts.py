"""The parts that a backend makes of a network, and that go into the engine file."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trtllm_lite.builder.limits import BuildLimits
from trtllm_lite.builder.memory import MemoryPlan
from trtllm_lite.engine.format import PRODUCER
from trtllm_lite.engine.manifest import Fusion, KvCache, Limits, Manifest, Tactic, Target
from trtllm_lite.engine.writer import Weight, write_engine
from trtllm_lite.network.config import ModelConfig


@dataclass(frozen=True)
class EngineParts:
    """``plan`` is JSON, ``cubins`` maps keys to machine code; weights start at multiples of ``alignment`` bytes."""

    target: Target
    plan: str
    weights: tuple[Weight, ...]
    kv_cache: KvCache
    memory: MemoryPlan
    cubins: Mapping[str, bytes]
    alignment: int
    tactics: tuple[Tactic, ...] = ()

    def manifest(
        self,
        model: ModelConfig,
        limits: BuildLimits,
        fusions: Sequence[Fusion],
        files: Mapping[str, str],
        *,
        qformat: str,
        stripped: bool,
    ) -> Manifest:
        """The manifest of the engine; ``files`` maps files beside it to their checksums."""
        return Manifest(
            producer=PRODUCER,
            target=self.target,
            model=model,
            limits=Limits(limits.max_batch_size, limits.max_input_len, limits.max_seq_len, limits.num_tokens),
            kv_cache=self.kv_cache,
            gather_context_logits=limits.gather_context_logits,
            files=dict(files),
            memory=self.memory.to_manifest(),
            fusions=tuple(fusions),
            qformat=qformat,
            stripped=stripped,
            tactics=self.tactics,
        )


def write_parts(
    path: Path, parts: EngineParts, manifest: Manifest, progress: Callable[[int, int], None] | None = None
) -> None:
    """Write the engine file, without the weights of a stripped engine; ``progress`` counts weights. Raises OSError."""
    write_engine(
        path,
        () if manifest.stripped else parts.weights,
        parts.plan,
        manifest.to_json(),
        progress,
        cubins=parts.cubins,
        alignment=parts.alignment,
    )
