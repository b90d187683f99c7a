"""The model ``postprocessing``: puts the text of an answer together.

What was generated is text already. Its token ids become text where they are generated, because that takes more than the
ids of a step: spaces depend on what came before, a character may take several steps, and text ends before a stop word.
"""

from typing import ClassVar

import numpy as np

from trtllm_lite.triton.requests import Arrays
from trtllm_lite.triton.tensors import OUTPUT, POST_PROMPT, POST_TEXT, Tensor
from trtllm_lite.triton.text_model import TextModel


class TritonPythonModel(TextModel):
    """What Triton's Python backend calls."""

    _inputs: ClassVar[tuple[Tensor, ...]] = (POST_PROMPT, POST_TEXT)

    def _answer(self, arrays: Arrays) -> Arrays:
        prompt = self._tokenizer.decode(arrays[POST_PROMPT.name].flatten().tolist()).encode()
        return {OUTPUT.name: np.array([[prompt + text for text in arrays[POST_TEXT.name].flat]], np.object_)}
