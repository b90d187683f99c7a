"""The model ``postprocessing``: assembles the text of an answer.

Its input is text already. Token ids become text where they are generated, because this takes more than the ids of a
step: spaces depend on earlier tokens, a character may take several steps, and text ends before a stop word.
"""

from typing import ClassVar

import numpy as np

from trtllm_lite.triton.requests import Arrays
from trtllm_lite.triton.tensors import OUTPUT, POST_PROMPT, POST_TEXT, Tensor
from trtllm_lite.triton.text_model import TextModel


class TritonPythonModel(TextModel):
    """The model that Triton's Python backend calls."""

    _inputs: ClassVar[tuple[Tensor, ...]] = (POST_PROMPT, POST_TEXT)

    def _answer(self, arrays: Arrays) -> Arrays:
        prompt = self._tokenizer.decode(arrays[POST_PROMPT.name].flatten().tolist()).encode()
        return {OUTPUT.name: np.array([[prompt + text for text in arrays[POST_TEXT.name].flat]], np.object_)}
