"""Engines with int8 weights on CPUs: the tokens of transformers with weights rounded alike, in half the bytes."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from transformers import PreTrainedModel

from tests.models import NETWORK_FAMILIES, VOCAB_SIZE, quantize_linear_layers, save_tiny_model
from tests.tolerances import assert_close
from trtllm_lite.builder import build_engine, plan_memory
from trtllm_lite.cli import cli
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.engine.reader import read_engine
from trtllm_lite.runtime import ModelRunner

LIMITS = {"max_batch_size": 4, "max_input_len": 96, "max_seq_len": 128, "max_num_tokens": 64, "tokens_per_block": 16}
NUM_NEW_TOKENS = 20
LENGTHS = (1, 70, 3, 17)


class Engine:
    """A tiny model built with ``int8_wo``, and what it should compute."""

    def __init__(self, family: str, directory: Path) -> None:
        self.directory = directory
        self.reference: PreTrainedModel = quantize_linear_layers(save_tiny_model(family, directory / "model"))
        convert_checkpoint(str(directory / "model"), directory / "checkpoint")
        build_engine(directory / "checkpoint", directory / "engine", qformat="int8_wo", **LIMITS)
        self.runner = ModelRunner.from_dir(directory / "engine")

    def generate(self, prompts: list[list[int]]) -> list[tuple[list[int], np.ndarray]]:
        """Greedy tokens of each prompt, and the logits that they were chosen from."""
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


@pytest.fixture(scope="module", params=NETWORK_FAMILIES)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return Engine(request.param, tmp_path_factory.mktemp(request.param))


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


def test_weights_take_a_byte_and_a_scale(tmp_path: Path) -> None:
    save_tiny_model("llama", tmp_path / "model")
    convert_checkpoint(str(tmp_path / "model"), tmp_path / "checkpoint")
    command = ["build", "--checkpoint_dir", tmp_path / "checkpoint", "--output_dir", tmp_path / "engine"]
    arguments = [str(part) for part in (*command, "--qformat", "int8_wo")]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    engine = read_engine(tmp_path / "engine")
    int8 = [tensor for tensor in engine.plan.tensors if tensor.dtype == "int8"]
    assert len(int8) == 4 * 3
    assert all(tensor.kind == "weight" for tensor in int8)
    assert engine.manifest.qformat == "int8_wo"
    shown = CliRunner().invoke(cli, ["inspect", str(tmp_path / "engine"), "--json"])
    assert json.loads(shown.output)["qformat"] == "int8_wo"
    bytes_of = {
        qformat: plan_memory(tmp_path / "checkpoint", qformat=qformat).weights for qformat in ("full_prec", "int8_wo")
    }
    assert engine.manifest.memory.weights == bytes_of["int8_wo"] < 0.6 * bytes_of["full_prec"]
