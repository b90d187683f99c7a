"""Reads a checkpoint's ``network.onnx``, and checks the network and the places of its weights.

A checkpoint may come from anywhere. Initializers may point only into plain files of the checkpoint directory, within
their bounds; no other file of the machine is ever opened.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from trtllm_lite.common.foreign_files import open_foreign, read_foreign
from trtllm_lite.common.printable import one_line
from trtllm_lite.common.vocabulary import MAX_BYTES
from trtllm_lite.errors import EngineError, shown
from trtllm_lite.network.config import NETWORK_FILE
from trtllm_lite.network.contract import violations
from trtllm_lite.network.functions import FUNCTIONS, is_own
from trtllm_lite.network.tensors import extents, stored

_MAX_NETWORK_BYTES = 1 << 28  # weights are external; a network of a thousand layers has a few MB
_MAX_ENTRIES = 1 << 15  # nodes, weights and values, about 80 for a layer; onnx and onnx_ir read this many in seconds
_REMEDY = "convert the model again with `trtllm-lite convert`"


def load_network(checkpoint_dir: Path) -> ir.Model:
    """Load the network of a checkpoint and infer all shapes; weights stay on disk until they are evaluated.

    Raises EngineError if it is damaged, hostile, or violates the contract of :mod:`~trtllm_lite.network.contract`;
    OSError if it cannot be read.
    """
    path = Path(checkpoint_dir)
    network = path / NETWORK_FILE
    data = read_foreign(network, _MAX_NETWORK_BYTES)
    with _malformed_is_error(network):
        proto = onnx.load_from_string(data)
        _check_entries(network, proto)
        _check_tensors(network, proto.graph)
        model = ir.from_proto(onnx.shape_inference.infer_shapes(proto, strict_mode=True, data_prop=True))
    _check_model(network, model)
    _locate_weights(path, model.graph)
    with _malformed_is_error(network):
        onnx.checker.check_model(str(network))
    return model


@contextmanager
def _malformed_is_error(network: Path) -> Iterator[None]:
    """Turn errors of onnx and onnx_ir about a malformed file into an EngineError."""
    try:
        yield
    except (
        DecodeError,
        onnx.shape_inference.InferenceError,
        onnx.checker.ValidationError,
        ValueError,
        TypeError,
        RuntimeError,
    ) as error:
        raise EngineError(f"expected an ONNX network in {network}, found: {_root_cause(error)}: {_REMEDY}") from error


def _check_entries(network: Path, proto: onnx.ModelProto) -> None:
    """Raise EngineError for networks so large that onnx and onnx_ir would take long to read them."""
    called = {node.op_type for node in proto.graph.node if node.domain == FUNCTIONS}
    others = [function.name for function in proto.functions if not is_own(function)]
    if others:
        raise EngineError(
            f"{network} defines {_listed(others)} otherwise than this version, expected the project's functions alone: "
            f"{_REMEDY}"
        )
    undefined = called - {function.name for function in proto.functions}
    if undefined:
        raise EngineError(f"{network} calls functions that it does not define, {_listed(sorted(undefined))}: {_REMEDY}")
    count = _num_entries(proto.graph)
    if count > _MAX_ENTRIES:
        raise EngineError(
            f"{network} has {count:,} nodes, weights and values, expected at most {_MAX_ENTRIES:,}: {_REMEDY}"
        )


def _listed(names: Sequence[str]) -> str:
    """At most five names, for a message."""
    return ", ".join(map(shown, names[:5])) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _num_entries(graph: onnx.GraphProto) -> int:
    """The entries of ``graph`` and of the graphs in its nodes' attributes."""
    own = sum(map(len, (graph.node, graph.initializer, graph.sparse_initializer, graph.value_info, graph.input)))
    inner = (graph for node in graph.node for entry in node.attribute for graph in (entry.g, *entry.graphs))
    return own + len(graph.output) + sum(map(_num_entries, inner))


def _check_tensors(network: Path, graph: onnx.GraphProto) -> None:
    for tensor in graph.initializer:
        if tensor.data_type == onnx.TensorProto.UNDEFINED:
            raise EngineError(f"{network}: the weight {tensor.name} has no type: {_REMEDY}")
        for entry in tensor.external_data:
            if entry.key in ("offset", "length") and not str(entry.value).isdecimal():
                raise EngineError(
                    f"{network}: the {entry.key} of the weight {tensor.name} is {entry.value[:40]!r}, "
                    f"expected a number of bytes: {_REMEDY}"
                )


def _check_model(network: Path, model: ir.Model) -> None:
    # protobuf returns strings that are not UTF-8 as bytes.
    if not all(isinstance(name, str) for name in _names(model.graph)):
        raise EngineError(f"{network} has names that are not UTF-8: {_REMEDY}")
    for node in model.graph.all_nodes():
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.TENSOR and isinstance(attribute.value, ir.ExternalTensor):
                raise EngineError(
                    f"{network}: {node.name} keeps a constant in another file, expected it inline: {_REMEDY}"
                )
    problems = violations(model.graph)
    if problems:
        listed = "; ".join(map(one_line, problems))
        raise EngineError(f"{network} is not a network this version can use: {listed}: {_REMEDY}")


def _names(graph: ir.Graph) -> Iterator[object]:
    """Every name of the graph, except those of absent optional operands."""
    for value in (*graph.inputs, *graph.initializers.values()):
        yield value.name
        yield from (dim.value for dim in value.shape or () if not isinstance(dim, int) and dim.value is not None)
    for node in graph.all_nodes():
        yield from (node.op_type, node.domain, node.name or "", *node.attributes)
        yield from (value.name for value in node.outputs)


def _locate_weights(path: Path, graph: ir.Graph) -> None:
    """Replace external tensors by lazily read ones, after checking where they point."""
    files: dict[str, tuple[Path, int]] = {}
    for value in graph.initializers.values():
        tensor = value.const_value
        if isinstance(tensor, ir.ExternalTensor):
            location = str(tensor.location)
            if location not in files:
                files[location] = _weight_file(path, tensor)
            value.const_value = _located(path, tensor, *files[location])


def _weight_file(path: Path, tensor: ir.ExternalTensor) -> tuple[Path, int]:
    """The file that holds the tensor, and its size in bytes."""
    location = str(tensor.location)
    if Path(location).name != location:
        raise _elsewhere(path, tensor, "which is no name of a file")
    try:
        with open_foreign(path / location, MAX_BYTES, inside=path) as data:
            size = os.fstat(data.fileno()).st_size
    except OSError as error:
        raise _elsewhere(path, tensor, str(error.strerror)) from error
    return (path / location).resolve(), size


def _located(path: Path, tensor: ir.ExternalTensor, file: Path, size: int) -> ir.LazyTensor:
    """The tensor, read from ``file`` of ``size`` bytes when it is asked for."""
    shape, offset = extents(tensor), tensor.offset or 0
    if tensor.length != tensor.nbytes or min(shape, default=1) < 1 or offset + tensor.nbytes > size:
        raise EngineError(
            f"{path / NETWORK_FILE}: the weight {tensor.name} ({tensor.dtype.name} {shape}, {tensor.nbytes:,} bytes) "
            f"points to {tensor.length} bytes at {offset:,} of {tensor.location}, which has {size:,}: "
            f"the file is truncated or damaged; {_REMEDY}"
        )
    return stored(file, offset, tensor.dtype, shape)


def _elsewhere(path: Path, tensor: ir.ExternalTensor, reason: str) -> EngineError:
    return EngineError(
        f"{path / NETWORK_FILE}: the weight {tensor.name} should lie in a file of the checkpoint directory, but points "
        f"to {shown(str(tensor.location))} ({reason}): {_REMEDY}"
    )


def _root_cause(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error) or type(error).__name__).splitlines()[0][:200]
