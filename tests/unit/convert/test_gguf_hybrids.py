"""GGUF files of models with Mamba-2 or Kimi Delta Attention, against the checkpoints that they were made of."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from tests.gguf_hybrids import write_hybrid_gguf
from tests.models import VOCAB_SIZE, save_tiny_model
from tests.onnx_runner import OnnxRunner
from tests.tolerances import RECURRENT_TOLERANCES, assert_close
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.convert.gguf.file import open_gguf
from trtllm_lite.errors import ConvertError

MOE_LAYERS = ["linear_attention", "moe", "full_attention", "linear_attention", "moe"]
# The family, fields of its config, the family as which the file is read, and whether the networks are the same.
CASES: dict[str, tuple[str, dict[str, Any], str, bool]] = {
    "nemotron_h": (
        "nemotron_h",
        {"layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention", "mlp"]},
        "nemotron_h",
        True,
    ),
    "nemotron_h_moe": (
        "nemotron_h",
        {"layers_block_type": MOE_LAYERS, "n_group": 1, "topk_group": 1},
        "nemotron_h",
        True,
    ),
    "granitehybrid": ("granitemoehybrid", {}, "granitemoehybrid", False),  # gates and up are two matrices
    "granitehybrid without experts": ("granitemoehybrid", {"num_local_experts": 0}, "granitemoehybrid", False),
    "bamba": ("bamba", {}, "granitemoehybrid", False),
    "falcon-h1": ("falcon_h1", {}, "falcon_h1", False),  # factors are multiplied into matrices
    "falcon-h1 with norms": (
        "falcon_h1",
        {"mamba_rms_norm": True, "mamba_norm_before_gate": False},
        "falcon_h1",
        False,
    ),
    "kimi-linear": ("kimi_linear", {"linear_num_heads": 6}, "kimi_linear", True),
}


@pytest.mark.parametrize("trims_axes", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_the_network_is_that_of_the_hugging_face_checkpoint(case: str, trims_axes: bool, tmp_path: Path) -> None:
    family, fields, read_as, is_same = CASES[case]
    model = save_tiny_model(family, tmp_path / "model", **fields)
    path = write_hybrid_gguf(tmp_path / "model", tmp_path / "m.gguf", trims_axes=trims_axes)
    assert convert_checkpoint(str(path), tmp_path / "checkpoint", "float32").config.family == read_as
    tokens = np.random.default_rng(5).integers(0, VOCAB_SIZE, 70)
    with torch.no_grad():
        expected = model(torch.tensor(tokens[None]), use_cache=False).logits[0].numpy()
    assert_close(OnnxRunner(tmp_path / "checkpoint", 1, 70).step([tokens])[0], expected, table=RECURRENT_TOLERANCES)
    if not is_same:
        return
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "other", "float32")
    found, others = (load_file(tmp_path / name / "weights.safetensors") for name in ("checkpoint", "other"))
    assert found.keys() == others.keys()
    for name, values in others.items():  # the file stores exp(A_log)
        np.testing.assert_allclose(found[name], values, rtol=1e-6, atol=2e-7, err_msg=name)
    networks = [(tmp_path / name / "network.onnx").read_bytes() for name in ("checkpoint", "other")]
    assert networks[0] == networks[1]


WIDE = {"hidden_size": 64, "intermediate_size": 96}  # blocks hold 32
OWN_WIDE = {
    "nemotron_h": {"moe_latent_size": 32},
    "granitemoehybrid": {"mamba_n_heads": 4, "mamba_d_head": 32, "num_attention_heads": 4},
    "falcon_h1": {"mamba_d_ssm": 96, "mamba_d_head": 16, "num_attention_heads": 4},
    "kimi_linear": {"num_attention_heads": 4, "linear_num_heads": 4, "linear_head_dim": 16, "kv_lora_rank": 32},
}


@pytest.mark.parametrize("case", ["nemotron_h_moe", "granitehybrid", "falcon-h1", "kimi-linear"])
def test_matrices_stay_in_blocks(case: str, tmp_path: Path) -> None:
    family, fields, _, _ = CASES[case]
    save_tiny_model(family, tmp_path / "model", **{**fields, **WIDE, **OWN_WIDE[family]})
    tokens, logits = np.random.default_rng(6).integers(0, VOCAB_SIZE, 20), []
    for rounds in ("blocks", "values"):
        path = write_hybrid_gguf(tmp_path / "model", tmp_path / f"{rounds}.gguf", rounds=rounds)
        assert bool(open_gguf(path).blocks) == (rounds == "blocks")
        convert_checkpoint(str(path), tmp_path / rounds, "float32")
        logits += OnnxRunner(tmp_path / rounds, 1, 20).step([tokens])
    assert_close(logits[0], logits[1], table=RECURRENT_TOLERANCES)


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("nemotron_h", {"ssm.inner_size": None}, r"expected ssm\.inner_size to be a positive integer, found None"),
    ("falcon-h1", {"ssm.time_step_rank": 0}, r"expected ssm\.time_step_rank to be a positive integer, found 0"),
    ("granitehybrid", {"ssm.inner_size": 121}, r"ssm\.inner_size to be a multiple of ssm\.time_step_rank \(6\)"),
    ("granitehybrid", {"attention.head_count_kv": [0, 2]}, r"attention\.head_count_kv to have a size for each of 3"),
    ("granitehybrid", {"attention.head_count_kv": [0, 3, 2]}, r"one size in all layers that have num_key_value_heads"),
    ("nemotron_h", {"feed_forward_length": [0, 91, 91, 0, 91]}, r"and none with both, found \[2\]"),
    ("nemotron_h", {"attention.layer_norm_epsilon": 1e-3}, r"attention\.layer_norm_epsilon to be attention"),
    ("nemotron_h_moe", {"expert_gating_func": 1}, r"expert_gating_func to be 2 \(sigmoid\)"),
    ("kimi-linear", {"kda.head_dim": None}, r"expected kda\.head_dim to be a positive integer, found None"),
]


@pytest.mark.parametrize(("case", "metadata", "message"), WRONG)
def test_wrong_metadata_is_named(case: str, metadata: dict[str, Any], message: str, tmp_path: Path) -> None:
    family, fields, _, _ = CASES[case]
    save_tiny_model(family, tmp_path / "model", **fields)
    path = write_hybrid_gguf(tmp_path / "model", tmp_path / "m.gguf", metadata)
    with pytest.raises(ConvertError, match=message):
        open_gguf(path)


CONTRADICTED: list[tuple[str, dict[str, Any], str, str]] = [
    ("granitehybrid", {"attention.head_count_kv": [2, 0, 2]}, "", r"(?s)blk\.0\.attn_k\.weight.*head_count_kv: .*0"),
    ("nemotron_h", {"feed_forward_length": [91, 0, 0, 0, 91]}, "", r"(?s)blk\.0\.ffn_down.*feed_forward_length: .*0"),
    ("kimi-linear", {"attention.head_count_kv": [1, 0, 1]}, "", r"(?s)blk\.0\.attn_kv_a_mqa.*head_count_kv: .*0"),
    ("kimi-linear", {"kda.head_dim": 5}, "", r"wrong shape .*blk\.\{0-1\}\.ssm_"),
    ("falcon-h1", {"ssm.group_count": 1}, "", r"wrong shape .*blk\.\{0-2\}\.ssm_conv1d\.weight"),
    ("falcon-h1", {"ssm.unknown": 3}, "", r"falcon-h1\.ssm\.unknown: 3 is not mapped"),
    ("granitehybrid", {}, r"blk\.1\.ssm_d", r"missing .*blk\.1\.ssm_d"),
    ("falcon-h1", {}, r"blk\.1\.ffn_norm", r"missing .*blk\.1\.ffn_norm"),
]


@pytest.mark.parametrize(("case", "metadata", "without", "message"), CONTRADICTED)
def test_metadata_that_the_tensors_contradict(
    case: str, metadata: dict[str, Any], without: str, message: str, tmp_path: Path
) -> None:
    family, fields, _, _ = CASES[case]
    save_tiny_model(family, tmp_path / "model", **fields)
    path = write_hybrid_gguf(tmp_path / "model", tmp_path / "m.gguf", metadata, without)
    with pytest.raises(ConvertError, match=message):
        convert_checkpoint(str(path), tmp_path / "checkpoint")
    assert not (tmp_path / "checkpoint").exists()
