"""The memory that a request's body may take once it is decoded."""

import random

import pytest

from trtllm_lite.runtime.core import core
from trtllm_lite.serve.http.decoded_size import decoded_bytes


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 64 * 255, 64 * 256 + 7, 100_003])
def test_characters_are_counted_whatever_the_size(size):
    data = bytes(random.Random(size).choices(b'{["ab', k=size))
    assert core().count_bytes(data, '{["') == tuple(data.count(byte) for byte in (b"{", b"[", b'"'))
    assert core().count_bytes(bytearray(b"," * size), ",{") == (size, 0)


def test_every_value_counts():
    assert decoded_bytes(b'{"a": [1, 2]}') > 2 * 13 + 200 + 100 + 40
    assert decoded_bytes(b"0" * 100) == 200
