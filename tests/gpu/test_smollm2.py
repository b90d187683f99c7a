"""SmolLM2 on the GPU, greedy, against transformers in float32 on weights of the same rounding."""

import copy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from tests.e2e.test_generate import MESSAGES, TEXTS
from tests.tolerances import GPU_TOLERANCES, ROUNDING_RATIO
from trtllm_lite.builder import build_engine
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.runtime import ModelRunner

LIMITS = {"max_batch_size": 20, "max_input_len": 256, "max_seq_len": 512, "max_num_tokens": 1024}
NUM_NEW_TOKENS = 64


@dataclass
class SmolLM2:
    """The engine of one dtype, prompts as token ids, the reference, and transformers in the engine's dtype."""

    dtype: str
    runner: ModelRunner
    prompts: list[list[int]]
    reference: PreTrainedModel
    rounded: PreTrainedModel


def logits_of(model: PreTrainedModel, tokens: list[int]) -> np.ndarray:
    """float32[len(tokens), vocabulary]."""
    with torch.inference_mode():
        return model(torch.tensor([tokens], device="cuda")).logits[0].float().cpu().numpy()


@pytest.fixture(scope="module", params=["bfloat16", "float16"])
def smollm2(
    request: pytest.FixtureRequest,
    smollm2_gguf: Path,
    smollm2_reference: PreTrainedModel,
    tmp_path_factory: pytest.TempPathFactory,
) -> SmolLM2:
    directory = tmp_path_factory.mktemp(request.param)
    convert_checkpoint(str(smollm2_gguf), directory / "checkpoint", request.param, dequantize=True)
    build_engine(directory / "checkpoint", directory / "engine", **LIMITS, target="sm_90")
    runner = ModelRunner.from_dir(directory / "engine")
    assert runner.tokenizer is not None
    template = runner.tokenizer.chat_template
    assert template is not None
    chats = [template.render([{"role": "user", "content": message}]) for message in MESSAGES]
    reference = copy.deepcopy(smollm2_reference).to("cuda")
    for parameter in reference.parameters():
        if parameter.ndim == 2:  # the engine also keeps the other parameters in float32
            parameter.data = parameter.data.to(getattr(torch, request.param)).float()
    rounded = copy.deepcopy(reference)
    for parameter in rounded.parameters():
        parameter.data = parameter.data.to(getattr(torch, request.param))
    prompts = [runner.tokenizer.encode(text) for text in (*TEXTS, *chats)]
    return SmolLM2(request.param, runner, prompts, reference, rounded)


def test_greedy_tokens_are_those_of_the_reference_up_to_a_near_tie(smollm2: SmolLM2) -> None:
    ids = smollm2.runner.generate(smollm2.prompts, max_new_tokens=NUM_NEW_TOKENS, end_id=-1, temperature=0)
    tolerance = GPU_TOLERANCES[smollm2.dtype].relative
    num_equal = 0
    for number, (prompt, row) in enumerate(zip(smollm2.prompts, ids, strict=True)):
        tokens = row[0, len(prompt) : len(prompt) + NUM_NEW_TOKENS]
        # One pass over our tokens suffices: the reference's greedy tokens equal ours if its best token is always our
        # next one.
        logits = logits_of(smollm2.reference, [*prompt, *tokens[:-1].tolist()])[len(prompt) - 1 :]
        parted = np.flatnonzero(logits.argmax(1) != tokens)
        if not len(parted):
            num_equal += 1
            continue
        first = parted[0]
        margin = float(logits[first].max() - logits[first, tokens[first]])
        print(f"{smollm2.dtype} prompt {number}: parts at token {first} of {NUM_NEW_TOKENS}, margin {margin:.4f}")
        assert margin <= 2 * tolerance * np.abs(logits[first]).max()
    print(f"{smollm2.dtype}: {num_equal} of {len(smollm2.prompts)} prompts are equal to the last token")
    assert num_equal >= len(smollm2.prompts) // 2


def test_logits_of_every_new_token(smollm2: SmolLM2) -> None:
    result = smollm2.runner.generate(
        smollm2.prompts,
        max_new_tokens=NUM_NEW_TOKENS,
        end_id=-1,
        temperature=0,
        return_dict=True,
        output_generation_logits=True,
    )
    squares, worst = np.zeros(2), np.zeros(2)  # errors of the engine, and of transformers in the engine's dtype
    for number, prompt in enumerate(smollm2.prompts):
        tokens = result["output_ids"][number, 0, len(prompt) : len(prompt) + NUM_NEW_TOKENS].tolist()
        exact, rounded = (
            logits_of(model, [*prompt, *tokens[:-1]])[len(prompt) - 1 :].astype(np.float64)
            for model in (smollm2.reference, smollm2.rounded)
        )
        errors = [np.abs(found - exact) for found in (result["generation_logits"][number][0], rounded)]
        squares += [np.square(error).mean() for error in errors]
        worst = np.maximum(worst, [error.max() for error in errors])
    rms = np.sqrt(squares / len(smollm2.prompts))
    print(f"{smollm2.dtype}: errors and those of transformers: rms {rms.round(4)}, worst {worst.round(3)}")
    assert rms[0] <= ROUNDING_RATIO.rms * rms[1]
    assert worst[0] <= ROUNDING_RATIO.worst * worst[1]
