"""Real weights of other families than SmolLM2's, against transformers in float32 on the same dequantized weights.

The files are fetched by hand (scripts/fetch_model.sh): tests of absent ones are skipped.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.onnx_runner import OnnxRunner
from tests.real_models import CACHE, FILES
from tests.tolerances import assert_close
from trtllm_lite.builder import build_engine
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.runtime import ModelRunner
from trtllm_lite.runtime.text.tokenizer import Tokenizer

NUM_NEW_TOKENS = 24
LIMITS = {"max_batch_size": 4, "max_input_len": 128, "max_seq_len": 160}
TEXTS = (
    "def fibonacci(n):\n    ",
    "The capital of France is",
    "import numpy as np\n\n# Compute the mean of each row\n",
    "你好，世界! naïve café 3.14159",
)


def _find(name: str) -> Path:
    file = CACHE / FILES[name]
    if not file.is_file():
        pytest.skip(f"{file.name} is not there: bash scripts/fetch_model.sh {name}")
    return file


def _encode(tokenizer: Tokenizer, file: Path) -> list[list[int]]:
    """The prompts, which must be those of transformers."""
    theirs = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    prompts = [tokenizer.encode(text) for text in TEXTS]
    assert prompts == [theirs(text).input_ids for text in TEXTS]
    return prompts


class _Reference:
    """transformers on the dequantized file."""

    def __init__(self, file: Path) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, dtype=torch.float32, attn_implementation="eager"
        ).eval()

    def logits(self, tokens: list[int]) -> np.ndarray:
        """float32[len(tokens), vocab]."""
        with torch.inference_mode():
            return self._model(torch.tensor([tokens])).logits[0].numpy()


def test_an_engine_of_qwen2_gives_the_tokens_of_transformers(tmp_path: Path) -> None:
    file = _find("qwen2.5-coder-0.5b")
    convert_checkpoint(str(file), tmp_path / "checkpoint", "float32")
    build_engine(tmp_path / "checkpoint", tmp_path / "engine", **LIMITS)
    runner = ModelRunner.from_dir(tmp_path / "engine")
    prompts = _encode(Tokenizer.from_files(tmp_path / "engine"), file)
    result = runner.generate(
        prompts,
        max_new_tokens=NUM_NEW_TOKENS,
        end_id=-1,
        temperature=0,
        return_dict=True,
        output_generation_logits=True,
    )
    del runner
    reference = _Reference(file)
    for number, prompt in enumerate(prompts):
        tokens = result["output_ids"][number][0][len(prompt) :][:NUM_NEW_TOKENS].tolist()
        logits = reference.logits([*prompt, *tokens[:-1]])[len(prompt) - 1 :]
        assert_close(result["generation_logits"][number][0], logits)
        assert tokens == np.argmax(logits, axis=1).tolist()


def test_the_network_of_gemma_3_gives_the_logits_of_transformers(tmp_path: Path) -> None:
    """A long prompt, too, which leaves the windows of 512 tokens."""
    file = _find("gemma-3-270m")
    convert_checkpoint(str(file), tmp_path, "float32")
    prompts = _encode(Tokenizer.from_files(tmp_path), file)
    long = [token for _ in range(15) for prompt in prompts for token in prompt][:600]
    reference = _Reference(file)
    for prompt in (*prompts, long):
        [logits] = OnnxRunner(tmp_path, 1, 640).step([np.array(prompt)])
        assert_close(logits, reference.logits(prompt))
