"""Arguments of generate: scalars and lists."""

import numpy as np
import pytest

from trtllm_lite.errors import ArgumentError
from trtllm_lite.runtime.values import per_request


def test_one_value_or_one_for_each():
    assert per_request("top_k", 3, 2) == [3, 3]
    assert per_request("top_k", [3, 4], 2) == [3, 4]
    assert per_request("top_k", np.array([3, 4]), 2) == [3, 4]
    with pytest.raises(ArgumentError, match="top_k has 3 values for 2 prompts"):
        per_request("top_k", [1, 2, 3], 2)
