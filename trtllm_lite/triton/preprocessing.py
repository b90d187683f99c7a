"""The model ``preprocessing``: turns a text into token ids."""

from typing import ClassVar

import numpy as np

from trtllm_lite.triton.requests import Arrays, text_of
from trtllm_lite.triton.tensors import INPUT_ID, QUERY, REQUEST_INPUT_LEN, Tensor
from trtllm_lite.triton.text_model import TextModel


class TritonPythonModel(TextModel):
    """The model that Triton's Python backend calls."""

    _inputs: ClassVar[tuple[Tensor, ...]] = (QUERY,)

    def _answer(self, arrays: Arrays) -> Arrays:
        ids = self._tokenizer.encode(text_of(QUERY.name, arrays))
        return {
            INPUT_ID.name: np.array([ids], np.int32),
            REQUEST_INPUT_LEN.name: np.array([[len(ids)]], np.int32),
        }
