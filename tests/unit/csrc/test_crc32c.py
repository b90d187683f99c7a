"""CRC-32C against published vectors, and against its own definition at every length and alignment."""

import numpy as np
import pytest

from trtllm_lite._core import crc32c

# RFC 3720, appendix B.4; the last is the check value of the catalogue of parametrised CRC algorithms.
VECTORS = {
    bytes(32): 0x8A9136AA,
    b"\xff" * 32: 0x62A8AB43,
    bytes(range(32)): 0x46DD794E,
    bytes(range(31, -1, -1)): 0x113FDB5C,
    b"123456789": 0xE3069283,
    b"": 0,
}


@pytest.mark.parametrize("data", VECTORS, ids=lambda data: f"{len(data)}bytes")
def test_known_vectors(data: bytes) -> None:
    assert crc32c(data) == VECTORS[data]


def crc_by_definition(data: bytes) -> int:
    """CRC-32C computed bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_every_length_and_alignment() -> None:
    data = np.random.default_rng(0).bytes(2100)
    for size in [*range(40), 511, 512, 1535, 1536, 1537, 2048]:
        assert crc32c(memoryview(data)[3 : 3 + size]) == crc_by_definition(data[3 : 3 + size])


@pytest.mark.parametrize("cut", [0, 1, 4097, 49152, 60000, 99999, 100000])
def test_continues_from_a_prefix(cut: int) -> None:
    """Long data, whose checksum is computed in three streams at once, gives the same result however it is cut."""
    data = np.random.default_rng(1).bytes(100000)
    assert crc32c(data[cut:], crc32c(data[:cut])) == crc32c(data)
    pieces = 0
    for start in range(0, len(data), 509):  # shorter than any stream
        pieces = crc32c(data[start : start + 509], pieces)
    assert pieces == crc32c(data)


def test_takes_arrays_and_refuses_the_rest() -> None:
    array = np.arange(10, dtype=np.float32)
    assert crc32c(array) == crc32c(array.tobytes())
    with pytest.raises((BufferError, ValueError)):
        crc32c(array[::2])
    with pytest.raises(TypeError):
        crc32c("text")  # type: ignore[arg-type]
