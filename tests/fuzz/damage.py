"""Damages bytes without regard to their meaning."""

import random
import struct


def damaged(rng: random.Random, data: bytes) -> bytes:
    """``data`` with flipped bits, a part cut out, repeated or zeroed, another end, or other first 8 bytes.

    Engine and safetensors files start with the length of their header, in 8 bytes.
    """
    result = bytearray(data)
    at = rng.randrange(len(data))
    length = rng.choice((1, 2, 8, 64, 1000))
    match rng.randrange(6):
        case 0:
            for _ in range(rng.choice((1, 1, 2, 16))):
                result[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        case 1:
            del result[at:]
        case 2:
            result += rng.randbytes(length)
        case 3:
            result[at : at + length] = b"\0" * rng.choice((0, length))
        case 4:
            result[at:at] = result[at : at + length]
        case 5:
            lengths = (0, 1, 56, 2**16, 2**24, 2**31, 2**63, 2**64 - 1, 2**64 - 8, rng.randrange(len(data)))
            result[:8] = struct.pack("<Q", rng.choice(lengths))
    return bytes(result)


def damaged_text(rng: random.Random, data: bytes) -> bytes:
    """A JSON text changed without regard to syntax: brackets, quotes, nesting, bytes that are not UTF-8."""
    text = bytearray(data)
    for _ in range(rng.choice((1, 2, 8))):
        at = rng.randrange(len(text))
        pieces = (
            *(b"[" * 40, b"{" * 5, b'{"a":' * 100_000, b"]", b"}", b'"', b"\\u12"),
            *(b"\xff\xfe", b"\0", b"1e999", b"-", b","),
        )
        text[at : at + rng.choice((0, 1, 5))] = rng.choice(pieces)
    return bytes(text)
