"""Real weights of families other than SmolLM2's, against transformers in float32 on the same dequantized weights.

The files are fetched by hand (scripts/fetch_model.sh): tests of absent ones are skipped.
"""

from functools import cache, lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from tests.onnx_runner import OnnxRunner
from tests.real_models import CACHE, FILES
from tests.references import load_reference
from tests.tolerances import assert_close
from trtllm_lite.builder import build_engine
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.runtime import ModelRunner
from trtllm_lite.runtime.text.tokenizer import Tokenizer

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
    prompts = [tokenizer.encode(text) for text in TEXTS]
    assert prompts == _their_prompts(file)
    return prompts


@cache
def _their_prompts(file: Path) -> list[list[int]]:
    theirs = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    return [theirs(text).input_ids for text in TEXTS]


@lru_cache(maxsize=1)
class _Reference:
    """transformers on the dequantized file; the last file stays loaded, because loading takes longer than using it."""

    def __init__(self, file: Path) -> None:
        self._model = load_reference(file)

    def logits(self, tokens: list[int]) -> np.ndarray:
        """transformers' logits, float32[len(tokens), vocab]."""
        with torch.inference_mode():
            return self._model(torch.tensor([tokens])).logits[0].numpy()


def _check_engine(checkpoint: Path, directory: Path, file: Path, num_new_tokens: int, texts: int) -> None:
    """Compare an engine's logits and greedy tokens with transformers for the first ``texts`` prompts, run together."""
    build_engine(checkpoint, directory, **LIMITS)
    runner = ModelRunner.from_dir(directory)
    prompts = _encode(Tokenizer.from_files(directory), file)[:texts]
    result = runner.generate(
        prompts,
        max_new_tokens=num_new_tokens,
        end_id=-1,
        temperature=0,
        return_dict=True,
        output_generation_logits=True,
    )
    del runner
    reference = _Reference(file)
    for number, prompt in enumerate(prompts):
        tokens = result["output_ids"][number][0][len(prompt) :][:num_new_tokens].tolist()
        logits = reference.logits([*prompt, *tokens[:-1]])[len(prompt) - 1 :]
        assert_close(result["generation_logits"][number][0], logits)
        assert tokens == np.argmax(logits, axis=1).tolist()


def test_an_engine_of_qwen2_gives_the_tokens_of_transformers(tmp_path: Path) -> None:
    file = _find("qwen2.5-coder-0.5b")
    convert_checkpoint(str(file), tmp_path / "checkpoint", "float32")
    _check_engine(tmp_path / "checkpoint", tmp_path / "engine", file, num_new_tokens=24, texts=4)


@pytest.fixture(scope="module")
def gemma_3(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Gemma 3 270M: the GGUF file, and its checkpoint in float32."""
    file = _find("gemma-3-270m")
    checkpoint = tmp_path_factory.mktemp("gemma3") / "checkpoint"
    convert_checkpoint(str(file), checkpoint, "float32")
    return file, checkpoint


def test_an_engine_of_gemma_3_gives_the_tokens_of_transformers(gemma_3: tuple[Path, Path], tmp_path: Path) -> None:
    file, checkpoint = gemma_3
    _check_engine(checkpoint, tmp_path / "engine", file, num_new_tokens=8, texts=2)


def test_the_network_of_gemma_3_gives_the_logits_of_transformers(gemma_3: tuple[Path, Path]) -> None:
    """One prompt is longer than the windows of 512 tokens."""
    file, checkpoint = gemma_3
    prompts = _encode(Tokenizer.from_files(checkpoint), file)
    long = [token for _ in range(15) for prompt in prompts for token in prompt][:600]
    reference = _Reference(file)
    for prompt in (*prompts, long):
        [logits] = OnnxRunner(checkpoint, 1, 640).step([np.array(prompt)])
        assert_close(logits, reference.logits(prompt))
