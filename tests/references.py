"""References of real models: transformers in float32 on the dequantized GGUF file.

Results are kept, because loading such a model and using it takes tens of seconds: each under a digest of the file, of
the packages that compute it, of what it is computed from, and of this source. The model is loaded only if a result
is missing.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.kept import kept
from trtllm_lite.common.foreign_files import sha256_of

_PACKAGES = ("gguf", "numpy", "torch", "transformers")


def load_reference(file: Path) -> PreTrainedModel:
    """transformers' model of a GGUF file, in float32."""
    with reading_once():
        model = AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, dtype=torch.float32, attn_implementation="eager"
        )
    return model.eval()


@contextmanager
def reading_once() -> Iterator[None]:
    """Let transformers read a GGUF file and map its tensors' names once, not anew for each part of a model."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("GGUFReader", "get_tensor_name_map"):
            patch.setattr(gguf, name, cache(getattr(gguf, name)))
        yield


class KeptReference:
    """What the model of a GGUF file computes, once for all processes; ``store`` holds the results.

    ``load`` returns the model. Each result has a name, under which the last one is kept.
    """

    def __init__(self, file: Path, store: Path, load: Callable[[], PreTrainedModel]) -> None:
        self._store = store
        self._load = load
        versions = [f"{name} {version(name)}" for name in _PACKAGES]
        self._origin = [sha256_of(file).encode(), *map(str.encode, versions), Path(__file__).read_bytes()]

    def logits(self, name: str, sequences: Sequence[Sequence[int]], counts: Sequence[int]) -> list[np.ndarray]:
        """The logits float32[count, vocab] after the last ``count`` tokens of each sequence, from one pass over it."""

        def compute() -> list[np.ndarray]:
            model = self._load()
            with torch.inference_mode():
                passes = [
                    model(torch.tensor([tokens]), logits_to_keep=count).logits[0]
                    for tokens, count in zip(sequences, counts, strict=True)
                ]
            return [logits.float().numpy() for logits in passes]

        return self._kept(name, [sequences, counts], compute)

    def continuations(self, name: str, prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
        """``count`` tokens after each prompt by transformers' own greedy loop, in one batch; EOS is ignored."""

        def compute() -> list[np.ndarray]:
            longest = max(map(len, prompts))
            mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
            padded = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
            output = self._load().generate(
                padded, attention_mask=mask, max_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=0
            )
            return list(output[:, longest:].numpy())

        return [tokens.tolist() for tokens in self._kept(name, [prompts, count], compute)]

    def _kept(self, name: str, arguments: object, compute: Callable[[], list[np.ndarray]]) -> list[np.ndarray]:
        def make(target: Path) -> None:
            with target.open("wb") as file:
                np.savez(file, *compute())

        with np.load(kept(self._store / name, [*self._origin, json.dumps(arguments).encode()], make)) as arrays:
            return [arrays[f"arr_{number}"] for number in range(len(arrays.files))]
