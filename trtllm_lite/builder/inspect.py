"""Describes a checkpoint: its network, and the fusions that a build would make."""

from collections import Counter
from pathlib import Path

import onnx_ir as ir

from trtllm_lite.builder.checkpoint import Checkpoint, open_checkpoint
from trtllm_lite.builder.pipeline import passes_of, run_passes
from trtllm_lite.engine.inspect import Inspection, summarize
from trtllm_lite.engine.records import to_json
from trtllm_lite.network.dtypes import DTYPE_NAMES
from trtllm_lite.quantize.network import quantized_as


def inspect_checkpoint(path: Path) -> Inspection:
    """Describe a checkpoint directory without reading its weights. Raises EngineError, BuildError."""
    checkpoint = open_checkpoint(path)
    _, fusions = run_passes(checkpoint.model, passes_of(checkpoint.kind, checkpoint.config.max_position_embeddings))
    return Inspection(
        kind="checkpoint",
        path=str(path),
        producer=checkpoint.config.producer,
        file_bytes={file.name: file.stat().st_size for file in sorted(Path(path).iterdir()) if file.is_file()},
        model=to_json(checkpoint.config),
        target="",
        qformat=quantized_as(checkpoint.model),
        accuracy=None,
        limits={},
        gather_context_logits=None,
        deterministic=False,
        kv_cache={},
        cache_use=None,
        memory=_weights_by_dtype(checkpoint),
        operators=dict(Counter(node.op_type for node in checkpoint.model.graph).most_common()),
        programs={},
        fusions=summarize(fusions),
        tactics=(),
        expansions=(),
    )


def _weights_by_dtype(checkpoint: Checkpoint) -> dict[str, int]:
    sizes: Counter[str] = Counter()
    for value in checkpoint.model.graph.initializers.values():
        tensor = value.const_value
        if isinstance(tensor, ir.LazyTensor):  # weights are lazy; constants are in the network itself
            sizes[f"weights in {DTYPE_NAMES[tensor.dtype]}"] += int(tensor.nbytes)
    return dict(sizes)
