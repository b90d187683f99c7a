"""Checks a checkpoint's ``network.onnx``: valid standard ONNX, and the inputs and outputs that the builder relies on.

Inputs: input_ids and position_ids int64 [batch, seq], past_lens int64 [batch], and per layer past_key.{i} and
past_value.{i} float32 [batch, kv_heads, max_seq, head_dim]. Outputs: logits float32 [batch, seq, vocab], then per
layer present_key.{i} and present_value.{i} of the same shapes as the past ones.
"""

from pathlib import Path

import onnx
import onnx_ir as ir

from trtllm_lite.errors import EngineError
from trtllm_lite.network.graph import OPSET_VERSION
from trtllm_lite.printable import one_line

NETWORK_FILE = "network.onnx"
WEIGHTS_FILE = "weights.safetensors"

_Signature = tuple[str, str, tuple[int | str, ...]]


def load_network(checkpoint_dir: Path) -> ir.Model:
    """Read and verify ``checkpoint_dir/network.onnx``; weights stay on disk. EngineError lists all that is wrong."""
    path = Path(checkpoint_dir) / NETWORK_FILE
    try:
        model = ir.load(path)
    except FileNotFoundError as error:
        raise EngineError(
            f"expected a checkpoint directory with {NETWORK_FILE}, but {path} does not exist: "
            "pass the --output_dir of `trtllm-lite convert`"
        ) from error
    except Exception as error:  # protobuf and onnx_ir raise many types on damaged files
        raise EngineError(f"{path} is not a readable ONNX file ({error}): convert the model again") from error
    problems = [*_check_graph(model.graph), *_check_weights(model.graph, path.parent)]
    if not problems:
        problems = _check_onnx(path)
    if problems:
        listed = "; ".join(map(one_line, problems))
        raise EngineError(f"{path} is not a network this version can use: {listed}: convert again")
    return model


def _check_onnx(path: Path) -> list[str]:
    try:
        # By path, so that the checker also looks for the external data.
        onnx.checker.check_model(str(path), full_check=True)
    except Exception as error:  # noqa: BLE001 - ValidationError, InferenceError and others share no base
        return [f"onnx.checker: {error}"]
    return []


def _check_graph(graph: ir.Graph) -> list[str]:
    problems = []
    if graph.opset_imports.get("", 0) < OPSET_VERSION:
        problems.append(f"expected opset {OPSET_VERSION} or newer, found {graph.opset_imports.get('')}")
    custom = sorted(
        {f"{node.domain}::{node.op_type}" for node in graph.all_nodes() if node.domain not in ("", "ai.onnx")}
    )
    if custom:
        problems.append(f"expected standard operators only, found {', '.join(custom)}")
    unnamed = sum(not node.name for node in graph.all_nodes())
    if unnamed:
        problems.append(f"{unnamed} nodes have no name")
    inputs, outputs = _expected_signatures(graph)
    problems += _compare("inputs", inputs, [_signature(value) for value in graph.inputs])
    problems += _compare("outputs", outputs, [_signature(value) for value in graph.outputs])
    return problems


def _expected_signatures(graph: ir.Graph) -> tuple[list[_Signature], list[_Signature]]:
    """The inputs and outputs of the module's contract, with the model's sizes taken from the graph."""
    layers = (len(graph.inputs) - 3) // 2
    cache = _signature(graph.inputs[3])[2] if len(graph.inputs) > 3 else ()
    cache = (
        ("batch", cache[1], "max_seq", cache[3]) if len(cache) == 4 else ("batch", "kv_heads", "max_seq", "head_dim")
    )
    logits = _signature(graph.outputs[0])[2] if graph.outputs else ()
    vocab = logits[-1] if logits else "vocab"
    tokens = ("batch", "seq")
    inputs: list[_Signature] = [("input_ids", "INT64", tokens), ("position_ids", "INT64", tokens)]
    inputs.append(("past_lens", "INT64", ("batch",)))
    outputs: list[_Signature] = [("logits", "FLOAT", (*tokens, vocab))]
    for layer in range(max(layers, 1)):
        inputs += [(f"past_key.{layer}", "FLOAT", cache), (f"past_value.{layer}", "FLOAT", cache)]
        outputs += [(f"present_key.{layer}", "FLOAT", cache), (f"present_value.{layer}", "FLOAT", cache)]
    return inputs, outputs


def _signature(value: ir.Value) -> _Signature:
    dims = () if value.shape is None else tuple(d if isinstance(d, int) else str(d.value) for d in value.shape)
    return value.name or "", value.dtype.name if value.dtype else "?", dims


def _compare(what: str, expected: list[_Signature], found: list[_Signature]) -> list[str]:
    if expected == found:
        return []
    wrong = [f"{want} found {have}" for want, have in zip(expected, found, strict=False) if want != have]
    if len(expected) != len(found):
        wrong.append(f"{len(expected)} expected, {len(found)} found")
    return [f"{what}: expected {'; '.join(wrong)}"]


def _check_weights(graph: ir.Graph, directory: Path) -> list[str]:
    """Problems of large initializers, all of which must lie inside WEIGHTS_FILE."""
    problems = []
    path = directory / WEIGHTS_FILE
    size = path.stat().st_size if path.is_file() else None
    if size is None:
        return [f"{path} does not exist"]
    for value in graph.initializers.values():
        tensor = value.const_value
        if not isinstance(tensor, ir.ExternalTensor):
            continue
        end = (tensor.offset or 0) + (tensor.length or 0)
        if tensor.dtype == ir.DataType.UNDEFINED:
            problems.append(f"{value.name} has no type")
        elif str(tensor.location) != WEIGHTS_FILE:
            problems.append(f"{value.name} is stored in {tensor.location}, expected {WEIGHTS_FILE}")
        elif tensor.length != tensor.nbytes or not 0 <= (tensor.offset or 0) <= end <= size:
            problems.append(f"{value.name} occupies bytes {tensor.offset}..{end} of {WEIGHTS_FILE} ({size} bytes)")
    return problems
