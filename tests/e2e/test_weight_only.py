"""Engines with 8-bit weights on CPUs: the tokens of transformers with the same rounded weights, in half the memory."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from transformers import PreTrainedModel

from tests.models import GROUP_SIZE, NETWORK_FAMILIES, VOCAB_SIZE, quantize_linear_layers, save_tiny_model
from tests.tolerances import assert_close
from trtllm_lite.builder import build_engine, plan_memory
from trtllm_lite.cli import cli
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.engine.reader import read_engine
from trtllm_lite.runtime import ModelRunner

LIMITS = {"max_batch_size": 4, "max_input_len": 96, "max_seq_len": 128, "max_num_tokens": 64, "tokens_per_block": 16}
NUM_NEW_TOKENS = 20
CASES = [
    *((family, "int8_wo") for family in NETWORK_FAMILIES),
    *[("llama", "fp8_wo"), ("gpt2", "fp8_wo"), ("llama", "int4_wo"), ("phi3", "int4_wo")],
]
IN_GROUPS = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
LENGTHS = (1, 70, 3, 17)


class Engine:
    """A tiny model built with ``qformat``, and the reference for its results."""

    def __init__(self, family: str, qformat: str, directory: Path) -> None:
        sizes = IN_GROUPS if qformat == "int4_wo" else {}
        model = save_tiny_model(family, directory / "model", **sizes)
        self.reference: PreTrainedModel = quantize_linear_layers(model, qformat)
        convert_checkpoint(str(directory / "model"), directory / "checkpoint")
        build_engine(directory / "checkpoint", directory / "engine", qformat=qformat, group_size=GROUP_SIZE, **LIMITS)
        self.runner = ModelRunner.from_dir(directory / "engine")

    def generate(self, prompts: list[list[int]]) -> list[tuple[list[int], np.ndarray]]:
        """Greedy tokens of each prompt, and the logits from which they were chosen."""
        result = self.runner.generate(
            prompts,
            max_new_tokens=NUM_NEW_TOKENS,
            end_id=-1,
            temperature=0,
            return_dict=True,
            output_generation_logits=True,
        )
        rows = [
            row[0, len(prompt) : len(prompt) + NUM_NEW_TOKENS].tolist()
            for row, prompt in zip(result["output_ids"], prompts, strict=True)
        ]
        return list(zip(rows, (logits[0] for logits in result["generation_logits"]), strict=True))


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return Engine(*request.param, tmp_path_factory.mktemp(request.param[0]))


def prompts() -> list[list[int]]:
    generator = np.random.default_rng(0)
    return [generator.integers(3, VOCAB_SIZE, length).tolist() for length in LENGTHS]


def test_tokens_are_those_of_transformers(engine: Engine) -> None:
    for prompt, (tokens, logits) in zip(prompts(), engine.generate(prompts()), strict=True):
        with torch.inference_mode():
            expected = engine.reference(torch.tensor([prompt + tokens[:-1]])).logits[0, len(prompt) - 1 :].numpy()
        assert_close(logits, expected)
        assert tokens == expected.argmax(axis=1).tolist()


def test_a_row_does_not_depend_on_the_batch(engine: Engine) -> None:
    together = engine.generate(prompts())
    for prompt, (tokens, logits) in zip(prompts(), together, strict=True):
        ((alone, alone_logits),) = engine.generate([prompt])
        assert tokens == alone
        np.testing.assert_array_equal(logits, alone_logits)


@pytest.mark.parametrize(("qformat", "dtype"), [("int8_wo", "int8"), ("fp8_wo", "float8_e4m3fn")])
def test_weights_take_a_byte_and_a_scale(qformat: str, dtype: str, tmp_path: Path) -> None:
    save_tiny_model("llama", tmp_path / "model")
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint")
    command = ["build", "--checkpoint_dir", tmp_path / "checkpoint", "--output_dir", tmp_path / "engine"]
    arguments = [str(part) for part in (*command, "--qformat", qformat)]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    engine = read_engine(tmp_path / "engine")
    stored = [tensor for tensor in engine.plan.tensors if tensor.dtype == dtype]
    assert len(stored) == 4 * 3
    assert all(tensor.kind == "weight" for tensor in stored)
    assert engine.manifest.qformat == qformat
    shown = CliRunner().invoke(cli, ["inspect", str(tmp_path / "engine"), "--json"])
    assert json.loads(shown.output)["qformat"] == qformat
    bytes_of = {name: plan_memory(tmp_path / "checkpoint", qformat=name).weights for name in ("full_prec", qformat)}
    assert engine.manifest.memory.weights == bytes_of[qformat] < 0.6 * bytes_of["full_prec"]
