"""GGUF files of models with recurrent layers: the order of heads, what a file says of states, and layers that draft."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from tests.gguf_writer import dequantized, drafting_layer, write_gguf
from tests.models import VOCAB_SIZE, save_model, tiny_model
from tests.onnx_runner import OnnxRunner
from tests.qwen_mtp import TorchQwen, save_tiny_qwen
from tests.tolerances import RECURRENT_TOLERANCES, assert_close
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.convert.gguf.file import open_gguf
from trtllm_lite.errors import ConvertError

ARCHITECTURES = {"qwen3_next": "qwen3next", "qwen3_5": "qwen35", "qwen3_5_moe": "qwen35moe"}
HEADS = [(2, 6), (3, 3), (1, 4), (3, 9)]  # key heads and value heads
WIDE = {"hidden_size": 64, "linear_value_head_dim": 32, "linear_num_value_heads": 4, "head_dim": 32}  # blocks hold 32
KINDS = {"attn_qkv": "Q8_0", "attn_gate": "Q4_0", "ssm_alpha": "Q8_0", "ssm_beta": "Q5_1", "ssm_out": "Q4_1"}


def _check(model: Any, checkpoint: Path) -> None:
    tokens = np.random.default_rng(9).integers(0, VOCAB_SIZE, 9)
    with torch.no_grad():
        expected = model(torch.tensor(tokens[None]), use_cache=False).logits[0].numpy()
    assert_close(OnnxRunner(checkpoint, 1, 16).step([tokens])[0], expected, table=RECURRENT_TOLERANCES)


@pytest.mark.parametrize("heads", HEADS, ids=lambda heads: "-".join(map(str, heads)))
@pytest.mark.parametrize("family", ARCHITECTURES)
def test_the_network_is_that_of_the_hugging_face_checkpoint(
    family: str, heads: tuple[int, int], tmp_path: Path
) -> None:
    model = tiny_model(family, linear_num_key_heads=heads[0], linear_num_value_heads=heads[1])
    save_model(model, tmp_path / "model")
    write_gguf(model, tmp_path / "m.gguf")
    for source in ("model", "m.gguf"):
        converted = convert_checkpoint(str(tmp_path / source), tmp_path / f"{source}-checkpoint", "float32")
        assert converted.config.family == family
    _check(model, tmp_path / "m.gguf-checkpoint")
    if family == "qwen3_next":  # whose weights are named by other matrices
        return
    found, expected = (load_file(tmp_path / f"{name}-checkpoint/weights.safetensors") for name in ("m.gguf", "model"))
    assert found.keys() == expected.keys()
    for name, values in expected.items():  # the file stores exp(A_log), and norms to which 1 was added
        np.testing.assert_allclose(found[name], values, rtol=1e-6, atol=2e-7, err_msg=name)
    networks = [(tmp_path / f"{name}-checkpoint/network.onnx").read_bytes() for name in ("m.gguf", "model")]
    assert networks[0] == networks[1]


@pytest.mark.parametrize("family", ARCHITECTURES)
def test_matrices_stay_in_blocks(family: str, tmp_path: Path) -> None:
    model = tiny_model(family, **WIDE)
    path = write_gguf(model, tmp_path / "m.gguf", KINDS)
    blocks = {name.removeprefix("model.layers.0.linear_attn.") for name in open_gguf(path).blocks if ".0." in name}
    rows = {"in_proj_a.weight", "in_proj_b.weight"} if family != "qwen3_next" else set()
    assert blocks == {"in_proj_qkv.weight", "in_proj_z.weight", "out_proj.weight", *rows}
    convert_checkpoint(str(path), tmp_path / "checkpoint", "float32")
    if family != "qwen3_next":  # in whose checkpoints queries, keys, values and gates are one matrix
        _check(dequantized(model, KINDS), tmp_path / "checkpoint")


def test_a_matrix_whose_heads_are_parts_of_blocks_is_expanded(tmp_path: Path) -> None:
    model = tiny_model("qwen3_5", **{**WIDE, "linear_value_head_dim": 16})
    path = write_gguf(model, tmp_path / "m.gguf", {"ssm_out": "Q8_0", "attn_gate": "Q8_0"})
    blocks = open_gguf(path).blocks
    assert "model.layers.0.linear_attn.in_proj_z.weight" in blocks
    assert "model.layers.0.linear_attn.out_proj.weight" not in blocks
    convert_checkpoint(str(path), tmp_path / "checkpoint", "float32")


def test_files_of_the_first_weeks_hold_gates_beside_values(tmp_path: Path) -> None:
    model = tiny_model("qwen3_next")
    convert_checkpoint(str(write_gguf(model, tmp_path / "m.gguf", fuses_gates=True)), tmp_path / "checkpoint")
    _check(model, tmp_path / "checkpoint")


def _with_drafting_layer(family: str, root: Path, count: int = 1, **extra: np.ndarray) -> TorchQwen:
    """Write a model with an MTP layer as ``root``/model and, as ``count`` says, as ``root``/m.gguf."""
    head, name = save_tiny_qwen(family, root / "model"), ARCHITECTURES[family]
    counts = {f"{name}.block_count": 3 + count, f"{name}.nextn_predict_layers": count}
    layer = drafting_layer(head.tensors, 3, name)
    write_gguf(head.model, root / "m.gguf", metadata=counts, extra={**layer, **extra})
    return head


@pytest.mark.parametrize("family", ARCHITECTURES)
def test_layers_that_draft_are_counted_as_blocks(family: str, tmp_path: Path) -> None:
    """The model is made without such a layer, and the layer is that of the Hugging Face checkpoint."""
    head = _with_drafting_layer(family, tmp_path)
    config = convert_checkpoint(str(tmp_path / "m.gguf"), tmp_path / "checkpoint").config
    assert config.num_hidden_layers == 3
    _check(head.model, tmp_path / "checkpoint")
    for name in ("m.gguf", "model"):
        source, made = str(tmp_path / name), tmp_path / f"{name}-layer"
        assert convert_checkpoint(source, made, target_model_dir=source).config.num_hidden_layers == 1
    found, expected = (load_file(tmp_path / f"{name}-layer" / "weights.safetensors") for name in ("m.gguf", "model"))
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-6, atol=2e-7, err_msg=name)
    networks = [(tmp_path / f"{name}-layer" / "network.onnx").read_bytes() for name in ("m.gguf", "model")]
    assert networks[0] == networks[1]


def test_absent_tensors_of_a_drafting_layer_are_named_as_in_the_file(tmp_path: Path) -> None:
    head = save_tiny_qwen("qwen3_5", tmp_path / "model")
    layer = drafting_layer(head.tensors, 3, "qwen35")
    absent = ("blk.3.attn_k_norm.weight", "blk.3.nextn.shared_head_norm.weight")
    extra = {name: values for name, values in layer.items() if name not in absent}
    counts = {"qwen35.block_count": 4, "qwen35.nextn_predict_layers": 1}
    source = str(write_gguf(head.model, tmp_path / "m.gguf", metadata=counts, extra=extra))
    with pytest.raises(ConvertError, match=rf"missing \(2\): {re.escape(', '.join(absent))}"):
        convert_checkpoint(source, tmp_path / "layer", target_model_dir=source)


def test_a_drafting_layer_with_an_embedding_of_its_own_is_refused(tmp_path: Path) -> None:
    """Such a file's model is as usual; its layer would have the wrong embedding."""
    _with_drafting_layer("qwen3_5", tmp_path, **{"blk.3.nextn.embed_tokens.weight": np.ones((397, 60), np.float32)})
    source = str(tmp_path / "m.gguf")
    convert_checkpoint(source, tmp_path / "checkpoint")
    with pytest.raises(ConvertError, match=r"unused \(1\): blk\.3\.nextn\.embed_tokens\.weight"):
        convert_checkpoint(source, tmp_path / "layer", target_model_dir=source)


def test_files_without_the_drafting_layer_that_they_count_are_refused(tmp_path: Path) -> None:
    model = tiny_model("qwen3_5")
    counts = {"qwen35.block_count": 4, "qwen35.nextn_predict_layers": 1}
    source = str(write_gguf(model, tmp_path / "m.gguf", metadata=counts))
    convert_checkpoint(source, tmp_path / "checkpoint")
    with pytest.raises(ConvertError, match=r"mtp_num_hidden_layers: expected the tensors of a layer .* found none"):
        convert_checkpoint(source, tmp_path / "layer", target_model_dir=source)


def test_kinds_of_layers_may_be_listed(tmp_path: Path) -> None:
    layers = ["full_attention", "linear_attention", "linear_attention"]
    model = tiny_model("qwen3_5", layer_types=layers)
    listed = {"qwen35.attention.recurrent_layers": [False, True, True], "qwen35.full_attention_interval": 4}
    path = write_gguf(model, tmp_path / "m.gguf", metadata=listed)
    convert_checkpoint(str(path), tmp_path / "checkpoint")
    _check(model, tmp_path / "checkpoint")


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"ssm.group_count": None}, r"expected ssm\.group_count to be a positive integer, found None"),
    ({"ssm.conv_kernel": None}, r"expected ssm\.conv_kernel to be a positive integer, found None"),
    ({"ssm.inner_size": 0}, r"expected ssm\.inner_size to be a positive integer, found 0"),
    ({"ssm.group_count": 6, "ssm.time_step_rank": 2}, r"ssm\.time_step_rank .* multiple of ssm\.group_count \(6\)"),
    ({"ssm.inner_size": 85}, r"expected ssm\.inner_size to be a multiple of ssm\.time_step_rank \(6\), found 85"),
    ({"nextn_predict_layers": 3}, r"expected nextn_predict_layers to be less than block_count \(3\), found 3"),
    ({"attention.recurrent_layers": [True, False]}, r"attention\.recurrent_layers to have 3 entries, found 2"),
]


@pytest.mark.parametrize(("metadata", "message"), WRONG)
@pytest.mark.parametrize("family", ARCHITECTURES)
def test_wrong_metadata_is_named(family: str, metadata: dict[str, Any], message: str, tmp_path: Path) -> None:
    changes = {f"{ARCHITECTURES[family]}.{key}": value for key, value in metadata.items()}
    path = write_gguf(tiny_model(family), tmp_path / "m.gguf", metadata=changes)
    with pytest.raises(ConvertError, match=message):
        open_gguf(path)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"ssm.group_count": 3}, r"wrong shape .*blk\.\{0-1\}\.attn_qkv\.weight \(expected \[144, 60\]"),
        ({"ssm.state_size": 11}, r"wrong shape .*blk\.\{0-1\}\.ssm_conv1d\.weight"),
        ({"full_attention_interval": 2}, r"full_attention_interval: .* layers \{1-2\}"),
        ({"ssm.unknown": 5}, r"qwen35\.ssm\.unknown: 5 is not mapped"),
    ],
)
def test_metadata_that_the_tensors_contradict(metadata: dict[str, Any], message: str, tmp_path: Path) -> None:
    changes = {f"qwen35.{key}": value for key, value in metadata.items()}
    path = write_gguf(tiny_model("qwen3_5"), tmp_path / "m.gguf", metadata=changes)
    with pytest.raises(ConvertError, match=message):
        convert_checkpoint(str(path), tmp_path / "checkpoint")


def test_states_that_would_grow_are_refused(tmp_path: Path) -> None:
    model = tiny_model("qwen3_5")
    with torch.no_grad():
        model.model.layers[1].linear_attn.A_log.fill_(-torch.inf)
    path = write_gguf(model, tmp_path / "m.gguf")
    with pytest.raises(ConvertError, match=r"expected negative numbers in blk\.1\.ssm_a, .* found -?0\.0"):
        convert_checkpoint(str(path), tmp_path / "checkpoint")
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.parametrize("family", ["lfm2", "lfm2_moe"])
def test_short_convolutions_are_those_of_the_hugging_face_checkpoint(family: str, tmp_path: Path) -> None:
    model = tiny_model(family)
    save_model(model, tmp_path / "model")
    write_gguf(model, tmp_path / "m.gguf")
    for source in ("model", "m.gguf"):
        converted = convert_checkpoint(str(tmp_path / source), tmp_path / f"{source}-checkpoint", "float32")
        assert converted.config.family == family
    for name in ("weights.safetensors", "network.onnx"):
        found, expected = ((tmp_path / f"{source}-checkpoint" / name).read_bytes() for source in ("m.gguf", "model"))
        assert found == expected


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"attention.head_count_kv": [0, 2, 3]}, "num_key_value_heads: expected an integer in 1"),
        ({"attention.head_count_kv": [0, 2]}, "layer_types: expected 3 times full_attention or conv, found"),
        ({"attention.head_count_kv": [0, 2, 2]}, r"missing .*blk\.1\.attn_k\.weight"),
        ({"shortconv.l_cache": 4}, r"wrong shape .*shortconv\.conv\.weight \(expected \[60, 1, 4\]"),
        ({"shortconv.unknown": 4}, r"lfm2\.shortconv\.unknown: 4 is not mapped"),
    ],
)
def test_metadata_of_short_convolutions_that_is_wrong(metadata: dict[str, Any], message: str, tmp_path: Path) -> None:
    changes = {f"lfm2.{key}": value for key, value in metadata.items()}
    path = write_gguf(tiny_model("lfm2"), tmp_path / "m.gguf", metadata=changes)
    with pytest.raises(ConvertError, match=message):
        convert_checkpoint(str(path), tmp_path / "checkpoint")
