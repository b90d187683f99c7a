"""What TensorRT's builder is asked for, as files of one directory that :mod:`worker` reads.

Weights that the checkpoint holds as TensorRT gets them stay in its files, which are linked; others are computed once,
and written behind each other. The builder maps both, so that weights are in no memory of this process.
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
from trtllm_lite.files import writing
from trtllm_lite.network.graph import IR_VERSION
from trtllm_lite.network.tensors import Stored
from trtllm_lite.quantize.threads import in_order, workers_of
from trtllm_lite.vocabulary import ALIGNMENT

_ELSEWHERE = "weights"  # where the network says that its weights lie; they are handed over by address
_COMPUTED = "computed"  # the file of computed weights
_REMEDY = "set TMPDIR to a directory with enough space for the weights"
_PIECE = 1 << 24  # bytes that are hashed at once
_SOURCES = Path(__file__).parent


@dataclass(frozen=True)
class Profile:
    """The least, usual and most extents of one kind of step: sequences, new tokens of each, rows of logits."""

    batch: tuple[int, int, int]
    seq: tuple[int, int, int]
    logits: tuple[int, int, int]

    def shapes(self, graph: ir.Graph) -> dict[str, list[list[int]]]:
        """The least, usual and most extents of each input of ``graph`` by name."""
        symbols = {"batch": self.batch, "seq": self.seq, NUM_LOGITS: self.logits}
        return {
            str(value.name): [
                [dim if isinstance(dim, int) else symbols[str(dim)][which] for dim in dims(value) or ()]
                for which in range(3)
            ]
            for value in graph.inputs
        }


def profiles_of(limits: BuildLimits) -> tuple[Profile, Profile]:
    """Steps of context: new tokens of one sequence; steps of generation: one token of each sequence."""
    longest = min(limits.num_tokens, limits.max_seq_len)
    rows = longest if limits.gather_context_logits else 1
    batch = limits.max_batch_size
    context = Profile((1, 1, 1), (1, min(longest, limits.max_input_len), longest), (1, 1, rows))
    return context, Profile((1, batch, batch), (1, 1, 1), (1, batch, batch))


@dataclass(frozen=True)
class _Weights:
    """Where each weight lies (name, file, offset, bytes), and its digest by name."""

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

    Returns a digest of all that decides the bytes of the engine. Raises OutputError, EngineError (weights).
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
    """What the builder runs in: Python, whose objects lie on the same heap, the heap itself, this folder's sources."""
    files = (apart.HEAP, *sorted(_SOURCES.glob("*.py")))
    return [sys.version, *(hashlib.sha256(path.read_bytes()).hexdigest() for path in files)]


def _without_weights(graph: ir.Graph) -> tuple[bytes, dict[str, ir.LazyTensor]]:
    """The serialized network, whose weights are in no file, and the weights. Small constants stay inside."""
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
    """The digest of a tensor's bytes, and the bytes, but for those of a stored tensor."""
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
