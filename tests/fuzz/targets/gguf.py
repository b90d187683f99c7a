"""A GGUF file: header, metadata and tensors changed before they are written, or its bytes damaged."""

import random
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.fuzz.damage import damaged
from tests.fuzz.model_files import CONFIG, HEAD_DIM, HEADS, HIDDEN, INTERMEDIATE, LAYERS, VOCAB, tokenizer
from trtllm_lite.convert import convert_checkpoint

COUNT = 80
_U32, _F32, _STRING, _ARRAY, _I32 = 4, 6, 8, 9, 5
_NUMBERS = (0, 1, 2, 3, 7, 8, 9, 12, 13, 31, 32, 2**16, 2**31 - 1, 2**31, 2**32 - 1)
_LONG_NUMBERS = (*_NUMBERS, 2**32, 2**40, 2**60, 2**63 - 1, 2**63, 2**64 - 1)
_Entry = tuple[str, int, bytes]  # key, type, value
_TEXTS = ("", "\0", "llama", "gpt2", "x" * 30_000, "blk.0.attn_q.weight", "general.architecture", "tokenizer.ggml.pre")


@dataclass(frozen=True)
class _Tensor:
    name: str
    dims: tuple[int, ...]
    kind: int = 0  # float32
    offset: int = 0


class Target:
    """A Llama of two layers in float32."""

    def __init__(self, scratch: Path) -> None:
        del scratch

    def write(self, rng: random.Random, directory: Path) -> None:
        metadata, tensors = _metadata(), _tensors()
        data = b"\x3f" * (sum(_num_bytes(tensor) for tensor in tensors) + 32)
        counts = [3, len(tensors), len(metadata)]
        for _ in range(rng.choice((1, 1, 1, 2))):
            _change(rng, metadata, tensors, counts)
        content = b"GGUF" + struct.pack("<IQQ", *counts)
        content += b"".join(_string(key) + struct.pack("<I", kind) + value for key, kind, value in metadata)
        content += b"".join(map(_described, tensors))
        content += b"\0" * (-len(content) % 32) + data
        (directory / "model.gguf").write_bytes(damaged(rng, content) if rng.random() < 0.2 else content)

    def read(self, directory: Path) -> None:
        convert_checkpoint(str(directory / "model.gguf"), directory / "checkpoint", "float32")


def _change(rng: random.Random, metadata: list[_Entry], tensors: list[_Tensor], counts: list[int]) -> None:
    match rng.randrange(8):
        case 0:
            counts[rng.randrange(3)] = rng.choice((*_NUMBERS, counts[1] + 1, counts[2] - 1))
        case 1 | 2 | 3 | 4:
            at = rng.randrange(len(metadata))
            metadata[at] = _changed_entry(rng, metadata[at])
        case 5:
            at = rng.randrange(len(metadata))
            metadata[at : at + 1] = [metadata[at]] * rng.choice((0, 2))
        case _:
            at = rng.randrange(len(tensors))
            tensors[at] = _changed_tensor(rng, tensors[at])


def _changed_entry(rng: random.Random, entry: _Entry) -> _Entry:
    key, kind, value = entry
    match rng.randrange(4):
        case 0:
            return rng.choice((*_TEXTS, key + "x")), kind, value
        case 1:
            return key, rng.choice(range(15)), value
        case 2:
            return key, *rng.choice(_HOSTILE_VALUES)
        case _:
            changed = bytearray(value)
            for _ in range(rng.choice((1, 4))):
                changed[rng.randrange(len(changed))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
            return key, kind, bytes(changed)


def _changed_tensor(rng: random.Random, tensor: _Tensor) -> _Tensor:
    dims = list(tensor.dims)
    dims[rng.randrange(len(dims))] = rng.choice(_LONG_NUMBERS)
    return rng.choice(
        (
            replace(tensor, dims=tuple(dims * rng.choice((0, 1, 1, 1, 4)))),
            replace(tensor, kind=rng.choice((*range(42), 2**31))),
            replace(tensor, offset=rng.choice(_LONG_NUMBERS)),
            replace(tensor, name=rng.choice(_TEXTS)),
        )
    )


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _array(kind: int, values: list[bytes]) -> bytes:
    return struct.pack("<IQ", kind, len(values)) + b"".join(values)


_HOSTILE_VALUES = (
    *((_U32, struct.pack("<I", number)) for number in _NUMBERS),
    *((_F32, struct.pack("<f", number)) for number in (0.0, -1.0, 1e38, float("inf"), float("nan"))),
    *((_STRING, _string(text)) for text in _TEXTS),
    (_STRING, struct.pack("<Q", 2**62) + b"x"),
    (_STRING, struct.pack("<Q", 3) + b"\xff\xfe\0"),
    *((_ARRAY, struct.pack("<IQ", kind, count)) for kind in (0, 4, 8, 9, 13) for count in (0, 2**30, 2**60)),
    (_ARRAY, b"".join(struct.pack("<IQ", _ARRAY, 1) for _ in range(2000)) + struct.pack("<IQ", _U32, 0)),
)


def _metadata() -> list[_Entry]:
    numbers = {
        "llama.block_count": LAYERS,
        "llama.context_length": CONFIG["max_position_embeddings"],
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": INTERMEDIATE,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": 1,
        "llama.rope.dimension_count": HEAD_DIM,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    entries: list[_Entry] = [("general.architecture", _STRING, _string("llama"))]
    entries += [(key, _U32, struct.pack("<I", number)) for key, number in numbers.items()]
    entries.append(("llama.attention.layer_norm_rms_epsilon", _F32, struct.pack("<f", 1e-5)))
    vocabulary: dict[str, Any] = tokenizer().get_vocab()
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    entries += [
        ("tokenizer.ggml.model", _STRING, _string("gpt2")),
        ("tokenizer.ggml.pre", _STRING, _string("gpt-2")),
        ("tokenizer.ggml.tokens", _ARRAY, _array(_STRING, [_string(token) for token in tokens])),
        ("tokenizer.ggml.token_type", _ARRAY, _array(_I32, [struct.pack("<i", 1)] * len(tokens))),
        ("tokenizer.ggml.merges", _ARRAY, _array(_STRING, [_string("a b")])),
    ]
    return entries


def _tensors() -> list[_Tensor]:
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (HIDDEN, VOCAB), "output_norm": (HIDDEN,)}
    for layer in range(LAYERS):
        sizes = {
            **dict.fromkeys(("attn_norm", "ffn_norm"), (HIDDEN,)),
            **dict.fromkeys(("attn_q", "attn_output"), (HIDDEN, HEADS * HEAD_DIM)),
            **dict.fromkeys(("attn_k", "attn_v"), (HIDDEN, HEAD_DIM)),
            **dict.fromkeys(("ffn_gate", "ffn_up"), (HIDDEN, INTERMEDIATE)),
            "ffn_down": (INTERMEDIATE, HIDDEN),
        }
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in sizes.items()}
    tensors, offset = [], 0
    for name, shape in shapes.items():
        tensors.append(_Tensor(f"{name}.weight", shape, offset=offset))
        offset += -(-_num_bytes(tensors[-1]) // 32) * 32
    return tensors


def _num_bytes(tensor: _Tensor) -> int:
    count = 4
    for extent in tensor.dims:
        count *= extent
    return count


def _described(tensor: _Tensor) -> bytes:
    dims = struct.pack(f"<I{len(tensor.dims)}Q", len(tensor.dims), *tensor.dims)
    return _string(tensor.name) + dims + struct.pack("<IQ", tensor.kind, tensor.offset)
