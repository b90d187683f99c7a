"""Real weights of other families than SmolLM2's, against transformers in float32 on the same dequantized weights.

The files are fetched by hand (scripts/fetch_model.sh): tests of absent ones are skipped.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.real_models import CACHE, FILES
from tests.tolerances import assert_close
from trtllm_lite.builder import build_engine
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.runtime import ModelRunner

NUM_NEW_TOKENS = 24
LIMITS = {"max_batch_size": 4, "max_input_len": 128, "max_seq_len": 160}
TEXTS = (
    "def fibonacci(n):\n    ",
    "The capital of France is",
    "import numpy as np\n\n# Compute the mean of each row\n",
    "你好，世界! naïve café 3.14159",
)


@pytest.mark.parametrize("name", ["qwen2.5-coder-0.5b"])
def test_tokens_and_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    file = CACHE / FILES[name]
    if not file.is_file():
        pytest.skip(f"{file.name} is not there: bash scripts/fetch_model.sh {name}")
    convert_checkpoint(str(file), tmp_path / "checkpoint", "float32")
    build_engine(tmp_path / "checkpoint", tmp_path / "engine", **LIMITS)
    runner = ModelRunner.from_dir(tmp_path / "engine")
    assert runner.tokenizer is not None
    theirs = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    prompts = [runner.tokenizer.encode(text) for text in TEXTS]
    assert prompts == [theirs(text).input_ids for text in TEXTS]
    result = runner.generate(
        prompts,
        max_new_tokens=NUM_NEW_TOKENS,
        end_id=-1,
        temperature=0,
        return_dict=True,
        output_generation_logits=True,
    )
    del runner
    reference = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    for number, prompt in enumerate(prompts):
        tokens = result["output_ids"][number][0][len(prompt) :][:NUM_NEW_TOKENS].tolist()
        with torch.inference_mode():
            logits = reference(torch.tensor([[*prompt, *tokens[:-1]]])).logits[0, len(prompt) - 1 :].numpy()
        assert_close(result["generation_logits"][number][0], logits)
        assert tokens == np.argmax(logits, axis=1).tolist()
