"""Writes the request to TensorRT's builder, as files of one directory that :mod:`worker` reads.

Weights that TensorRT gets as the checkpoint stores them stay in its files, which are linked; other weights are computed
once and written one after the other. The builder maps both, so that this process holds no weights in memory.
"""

import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import onnx_ir as ir

from trtllm_lite.builder.graph import dims, remove_dead
from trtllm_lite.builder.limits import BuildLimits
from trtllm_lite.builder.tensorrt import apart
from trtllm_lite.builder.tensorrt.library import Library
from trtllm_lite.builder.tensorrt.passes.chosen_logits import NUM_LOGITS
from trtllm_lite.builder.tensorrt.worker import NETWORK, PACKAGES, REQUEST
from trtllm_lite.common.files import writing
from trtllm_lite.common.vocabulary import ALIGNMENT
from trtllm_lite.network.graph import IR_VERSION
from trtllm_lite.network.tensors import Stored
from trtllm_lite.quantize.threads import in_order, workers_of

_ELSEWHERE = "weights"  # file that the network names for its weights, which are handed over by address instead
_COMPUTED = "computed"  # the file of computed weights
_REMEDY = "set TMPDIR to a directory with enough space for the weights"
_PIECE = 1 << 24  # bytes that are hashed at a time
_SOURCES = Path(__file__).parent


@dataclass(frozen=True)
class Profile:
    """The minimum, usual and maximum extents of a kind of step: sequences, new tokens per sequence, rows of logits."""

    batch: tuple[int, int, int]
    seq: tuple[int, int, int]
    logits: tuple[int, int, int]

    def shapes(self, graph: ir.Graph) -> dict[str, list[list[int]]]:
        """The minimum, usual and maximum extents of each input of ``graph`` by name."""
        symbols = {"batch": self.batch, "seq": self.seq, NUM_LOGITS: self.logits}
        return {
            str(value.name): [
                [dim if isinstance(dim, int) else symbols[str(dim)][which] for dim in dims(value) or ()]
                for which in range(3)
            ]
            for value in graph.inputs
        }


def profiles_of(limits: BuildLimits) -> tuple[Profile, Profile]:
    """The profiles of context steps (new tokens of one sequence) and of generation steps (one token per sequence)."""
    longest = min(limits.num_tokens, limits.max_seq_len)
    rows = longest if limits.gather_context_logits else 1
    batch = limits.max_batch_size
    context = Profile((1, 1, 1), (1, min(longest, limits.max_input_len), longest), (1, 1, rows))
    return context, Profile((1, batch, batch), (1, 1, 1), (1, batch, batch))


@dataclass(frozen=True)
class _Weights:
    """The place of each weight (name, file, offset, bytes), and its digest by name."""

    places: list[tuple[str, str, int, int]] = field(default_factory=list)
    digests: dict[str, str] = field(default_factory=dict)


def write_request(
    directory: Path,
    graph: ir.Graph,
    limits: BuildLimits,
    archs: Sequence[str],
    library: Library,
    progress: Callable[[int, int], None],
) -> str:
    """Write the request to build ``graph``, whose types and caches :mod:`passes` made; ``progress`` counts weights.

    Returns a digest of everything that determines the bytes of the engine. Raises OutputError, EngineError (weights).
    """
    document, tensors = _without_weights(graph)
    asked = {
        "compute_capabilities": library.capabilities(archs),
        "profiles": [profile.shapes(graph) for profile in profiles_of(limits)],
    }
    with writing(str(directory), _REMEDY):
        (directory / NETWORK).write_bytes(document)
        (directory / PACKAGES).symlink_to(Path(str(library.module.__file__)).parents[1])
        weights = _write_weights(directory, tensors, workers_of(graph), progress)
        (directory / REQUEST).write_text(json.dumps({**asked, "weights": weights.places}))
    network = hashlib.sha256(document).hexdigest()
    described = [_tools(), library.package, library.version, list(archs), asked, network, weights.digests]
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()


def _tools() -> list[str]:
    """Describe what the builder runs on: Python and the heap, which place its objects, and this folder's sources."""
    files = (apart.HEAP, *sorted(_SOURCES.glob("*.py")))
    return [sys.version, *(hashlib.sha256(path.read_bytes()).hexdigest() for path in files)]


def _without_weights(graph: ir.Graph) -> tuple[bytes, dict[str, ir.LazyTensor]]:
    """Serialize the network without its weights, and return both. Small constants stay inside the network."""
    copy = ir.Model(graph, ir_version=IR_VERSION).clone()
    remove_dead(copy.graph)
    weights: dict[str, ir.LazyTensor] = {}
    for name, value in copy.graph.initializers.items():
        tensor = value.const_value
        if isinstance(tensor, ir.LazyTensor):
            weights[name] = tensor
            value.const_value = ir.ExternalTensor(
                _ELSEWHERE, 0, tensor.nbytes, tensor.dtype, name=name, shape=tensor.shape, base_dir=""
            )
    return ir.to_proto(copy).SerializeToString(), weights


def _write_weights(
    directory: Path, tensors: Mapping[str, ir.LazyTensor], workers: int, progress: Callable[[int, int], None]
) -> _Weights:
    """Link the files of stored tensors into ``directory``, and write the others there."""
    found, links = _Weights(), dict[Path, str]()
    read = in_order([partial(_read, tensor) for tensor in tensors.values()], workers)
    with open(directory / _COMPUTED, "wb") as file:
        for number, (name, tensor) in enumerate(tensors.items()):
            digest, data = next(read)
            found.digests[name] = digest
            if isinstance(tensor, Stored):
                link = links.setdefault(tensor.file, f"stored{len(links)}")
                found.places.append((name, link, tensor.offset, tensor.nbytes))
            else:
                found.places.append((name, _COMPUTED, file.tell(), len(data)))
                file.write(data.ljust(-(-len(data) // ALIGNMENT) * ALIGNMENT, b"\0"))
            progress(number + 1, len(tensors))
    for path, link in links.items():
        (directory / link).symlink_to(path)
    return found


def _read(tensor: ir.LazyTensor) -> tuple[str, bytes]:
    """Return the digest of a tensor's bytes, and the bytes unless the tensor is stored in a file."""
    if isinstance(tensor, Stored):
        digest = hashlib.sha256()
        for piece in _pieces(tensor):
            digest.update(piece)
        return digest.hexdigest(), b""
    data = tensor.tobytes()
    return hashlib.sha256(data).hexdigest(), data


def _pieces(tensor: Stored) -> Iterator[bytes]:
    with open(tensor.file, "rb") as file:
        file.seek(tensor.offset)
        for done in range(0, tensor.nbytes, _PIECE):
            yield file.read(min(_PIECE, tensor.nbytes - done))
