"""A checkpoint's config.json survives a round trip; wrong, missing and unknown keys are refused."""

import dataclasses
import json
from pathlib import Path

import pytest

from trtllm_lite.errors import EngineError
from trtllm_lite.network.config import ModelConfig

CONFIG = ModelConfig(
    producer="trtllm_lite 0.1.0",
    architecture="LlamaForCausalLM",
    family="llama",
    dtype="float32",
    vocab_size=397,
    hidden_size=60,
    intermediate_size=91,
    num_hidden_layers=3,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=10,
    max_position_embeddings=128,
    eos_token_ids=[1, 5],
    bos_token_id=0,
    pad_token_id=None,
    generation={"temperature": 0.7},
)


def test_round_trip(tmp_path: Path) -> None:
    assert ModelConfig.from_json(CONFIG.to_json()) == CONFIG
    (tmp_path / "config.json").write_text(CONFIG.to_json())
    assert ModelConfig.from_dir(tmp_path) == CONFIG


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"surprise": 1}, "unknown key 'surprise'"),
        ({"vocab_size": None}, "vocab_size is None"),
        ({"vocab_size": True}, "vocab_size is True"),
        ({"eos_token_ids": [1, "2"]}, "eos_token_ids is"),
        ({"generation": []}, "generation is"),
        ({"format_version": 4}, "expected checkpoint format_version 3, found 4"),
    ],
)
def test_refuses_wrong_values(changes: dict, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        ModelConfig.from_json(json.dumps({**dataclasses.asdict(CONFIG), **changes}))


def test_lists_every_missing_key() -> None:
    raw = dataclasses.asdict(CONFIG)
    del raw["head_dim"], raw["dtype"]
    with pytest.raises(EngineError, match="missing key 'dtype'; missing key 'head_dim'"):
        ModelConfig.from_json(json.dumps(raw))


@pytest.mark.parametrize("text", ["", "[]", "{", "null"])
def test_refuses_other_json(text: str) -> None:
    with pytest.raises(EngineError, match=r"expected config\.json to be a JSON object"):
        ModelConfig.from_json(text)


def test_names_a_directory_that_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="expected a checkpoint directory"):
        ModelConfig.from_dir(tmp_path)
