"""Checkpoints that are absent, incomplete, damaged or hostile: one clear error, and nothing is written."""

import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from random import Random

import onnx
import pytest

from tests.unit.builder.checkpoints import LIMITS, save_checkpoint
from trtllm_lite.builder import build_engine
from trtllm_lite.builder.checkpoint import open_checkpoint
from trtllm_lite.errors import EngineError, TrtllmLiteError

Q_PROJ = "model.layers.0.self_attn.q_proj.weight"


def _edit(checkpoint: Path, **entries: str) -> None:
    """Change entries of the external data of one weight."""
    proto = onnx.load(checkpoint / "network.onnx", load_external_data=False)
    tensor = next(tensor for tensor in proto.graph.initializer if tensor.name == Q_PROJ)
    for entry in tensor.external_data:
        entry.value = entries.get(entry.key, entry.value)
    (checkpoint / "network.onnx").write_bytes(proto.SerializeToString())


def _constant_node(checkpoint: Path) -> None:
    proto = onnx.load(checkpoint / "network.onnx", load_external_data=False)
    tensor = onnx.TensorProto(name="secret", data_type=1, dims=[4], data_location=onnx.TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="/etc/passwd")
    proto.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["secret"], name="spy", value=tensor))
    (checkpoint / "network.onnx").write_bytes(proto.SerializeToString())


def _symlink(checkpoint: Path) -> None:
    outside = checkpoint.parent / "outside"
    outside.write_bytes(bytes(10**6))
    (checkpoint / "link").symlink_to(outside)
    _edit(checkpoint, location="link")


def _huge_shape(checkpoint: Path) -> None:
    proto = onnx.load(checkpoint / "network.onnx", load_external_data=False)
    tensor = next(tensor for tensor in proto.graph.initializer if tensor.name == "model.norm.weight")
    tensor.dims[:] = [2**40]
    (checkpoint / "network.onnx").write_bytes(proto.SerializeToString())


def _old_opset(checkpoint: Path) -> None:
    proto = onnx.ModelProto(ir_version=10, opset_import=[onnx.helper.make_opsetid("", 17)])
    proto.graph.name = "empty"
    (checkpoint / "network.onnx").write_bytes(proto.SerializeToString())


def _rewrite(checkpoint: Path, change: Callable[[onnx.ModelProto], object]) -> None:
    proto = onnx.load(checkpoint / "network.onnx", load_external_data=False)
    change(proto)
    (checkpoint / "network.onnx").write_bytes(proto.SerializeToString())


def _untyped(proto: onnx.ModelProto) -> None:
    next(tensor for tensor in proto.graph.initializer if tensor.name == Q_PROJ).data_type = 0


def _identities(proto: onnx.ModelProto) -> None:
    names = ["input_ids", *(f"i{number}" for number in range(200_000))]
    proto.graph.node.extend(
        onnx.helper.make_node("Identity", [left], [right], name=right) for left, right in pairwise(names)
    )


def _doubling_functions(proto: onnx.ModelProto) -> None:
    """Thirty functions, each of which calls the previous one twice."""
    imports = [onnx.helper.make_opsetid("", 24), onnx.helper.make_opsetid("local", 1)]
    for number in range(30):
        kind, domain = (f"f{number - 1}", "local") if number else ("Identity", "")
        calls = [onnx.helper.make_node(kind, [a], [b], domain=domain) for a, b in ("xy", "yz")]
        proto.functions.append(onnx.helper.make_function("local", f"f{number}", ["x"], ["z"], calls, imports))
    proto.opset_import.append(imports[1])
    proto.graph.node.append(onnx.helper.make_node("f29", ["input_ids"], ["zz"], name="zz", domain="local"))


def _newer_version(checkpoint: Path) -> None:
    config = checkpoint / "config.json"
    config.write_text(config.read_text().replace('"format_version": 3', '"format_version": 4'))


def _truncate_weights(checkpoint: Path) -> None:
    weights = checkpoint / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _pretend_engine(checkpoint: Path) -> None:
    (checkpoint / "rank0.engine").write_bytes(b"")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: (path / "network.onnx").unlink(), "not a complete checkpoint: network.onnx missing"),
        (lambda path: (path / "tokenizer.json").unlink(), "not a complete checkpoint: tokenizer.json missing"),
        (lambda path: (path / "weights.safetensors").unlink(), "should lie in a file of the checkpoint directory"),
        (lambda path: (path / "network.onnx").write_bytes(b"\xff" * 99), "expected an ONNX network in"),
        (lambda path: (path / "network.onnx").write_bytes(b""), "expected ONNX opset 24 or newer, found 0"),
        (lambda path: (path / "config.json").write_text("{"), "config.json"),
        (_newer_version, "format_version 3, found 4"),
        (_old_opset, "expected ONNX opset 24 or newer, found 17"),
        (_truncate_weights, "weights.safetensors, which has 1,000: the file is truncated"),
        (_pretend_engine, "is an engine, expected a checkpoint"),
        (_symlink, "points to 'link'"),
        (_constant_node, "spy keeps a constant in another file, expected it inline"),
        (_huge_shape, "expected an ONNX network in|truncated or damaged"),
        (lambda path: _edit(path, location="../outside"), r"points to '\.\./outside'"),
        (lambda path: _edit(path, location="/etc/passwd"), "points to '/etc/passwd'"),
        (lambda path: _edit(path, location="."), r"points to '\.'"),
        (lambda path: _edit(path, offset="999999999"), "bytes at 999,999,999 of weights.safetensors"),
        (
            lambda path: _edit(path, offset="-8"),
            "the offset of the weight model.layers.0.self_attn.q_proj.weight is '-8', expected a number",
        ),
        (lambda path: _edit(path, length="16"), "points to 16 bytes"),
        (lambda path: _edit(path, location="a\0b"), "should lie in a file of the checkpoint directory"),
        (lambda path: _edit(path, location="a" * 5000), r"points to 'aaa.*\.\.\..*' \(File name too long\)"),
        (lambda path: _edit(path, location=""), r"points to '' \(it is not a plain file\)"),
        (lambda path: _edit(path, location=".."), r"points to '\.\.'"),
        (lambda path: _pipe(path / "weights.safetensors"), r"weights.safetensors' \(it is not a plain file\)"),
        (lambda path: _pipe(path / "network.onnx"), "network.onnx missing"),
        (lambda path: _rewrite(path, _untyped), "q_proj.weight has no type"),
        (lambda path: _rewrite(path, _identities), r"has 200,\d+ nodes, weights and values, expected at most 32,768"),
        (
            lambda path: _rewrite(path, _doubling_functions),
            "defines 'f0', .* and 25 more otherwise than",
        ),
        (lambda path: (path / "config.json").write_bytes(b'{"a": "\xff"}'), "config.json to be a JSON object"),
        (lambda path: (path / "config.json").write_bytes(b"[" * 100_000), "config.json to be a JSON object"),
    ],
)
def test_damage_is_one_clear_error(damage: Callable[[Path], object], message: str, tmp_path: Path) -> None:
    checkpoint = save_checkpoint(tmp_path / "checkpoint")
    damage(checkpoint)
    with pytest.raises(EngineError, match=message):
        build_engine(checkpoint, tmp_path / "engine", **LIMITS)
    assert not (tmp_path / "engine").exists()


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="does not exist: pass the output_dir of"):
        open_checkpoint(tmp_path / "nowhere")


def test_a_file_instead_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(EngineError, match="is a file: pass the output_dir of"):
        open_checkpoint(tmp_path / "model.gguf")


def test_mutated_networks_build_or_fail_cleanly(tmp_path: Path) -> None:
    """Flip, insert, delete and move bytes: only our own errors may be raised."""
    checkpoint = save_checkpoint(tmp_path / "checkpoint", "mistral")
    original = (checkpoint / "network.onnx").read_bytes()
    random = Random(0)
    failed = 0
    for _ in range(80):
        data, position = bytearray(original), random.randrange(len(original))
        match random.randrange(4):
            case 0:
                data[position] ^= 1 << random.randrange(8)
            case 1:
                data[position:position] = random.randbytes(random.randint(1, 8))
            case 2:
                del data[position : position + random.randint(1, 8)]
            case 3:
                source = random.randrange(len(data))
                data[position : position + 40] = data[source : source + 40]
        (checkpoint / "network.onnx").write_bytes(data)
        try:
            build_engine(checkpoint, tmp_path / "engine", **LIMITS)
        except TrtllmLiteError:
            failed += 1
    assert failed > 40
