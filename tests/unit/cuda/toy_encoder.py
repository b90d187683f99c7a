"""An encoder's engine of the toy model of fake_libcuda.cc: a text's row is multiples of its tokens' sum."""

import copy
from typing import Any

from tests.unit.csrc.tiny_engine import METADATA, TinyEngine
from tests.unit.cuda.toy_engine import MANIFEST, MAX_NUM_TOKENS, NUM_SEQS, PAGE, SYMBOLS, compiled, extent

SIZE = 8
_TENSORS: list[tuple[str, str, list[int | str], str, int]] = [
    ("token_ids", "int32", ["num_tokens"], "input", 0),
    ("cu_seqlens", "int32", ["num_seqs_plus_1"], "input", 0),
    ("x", "int32", ["num_tokens"], "arena", 256),
    ("sentence_embedding", "float32", ["num_seqs", SIZE], "arena", 512),
]
_INDEX = {name: number for number, (name, *_) in enumerate(_TENSORS)}


def _launch(kernel: int, rows: str, *tensors: str | None) -> dict[str, Any]:
    arguments = [None if name is None else {"tensor": _INDEX[name], "offset": 0} for name in tensors]
    return {"kind": "launch", "kernel": kernel, "grid": [extent(rows), 1, 1], "args": arguments, "programmatic": False}


_KERNELS = ("embed", "pool_sums")


def make_toy_encoder() -> TinyEngine:
    """A valid engine whose parts may be changed."""
    manifest = copy.deepcopy(MANIFEST)
    geometry = dict.fromkeys(("num_blocks", "bytes_per_block"), 0)
    manifest["kv_cache"] = {"tokens_per_block": PAGE, "groups": [], **geometry}
    mixed = {"name": "mixed", "arch": "sm_90a", "decode_only": False, "max_tokens": MAX_NUM_TOKENS, "adapters": False}
    mixed["instructions"] = [
        _launch(0, "num_tokens", "x", "token_ids", None, None),
        _launch(1, "num_seqs", "sentence_embedding", "x", "cu_seqlens"),
    ]
    plan = {
        "symbols": {name: bound for name, bound in SYMBOLS.items() if name not in ("num_tables", "num_blocks")},
        "arena_bytes": 512 + NUM_SEQS * SIZE * 4,
        "state_bytes": 0,
        "tensors": [
            {"name": name, "dtype": dtype, "shape": shape, "layout": "row_major", "kind": kind, "offset": offset}
            for name, dtype, shape, kind, offset in _TENSORS
        ],
        "outputs": {"sentence_embedding": _INDEX["sentence_embedding"]},
        "inputs": {},
        "tallies": [],
        "kernels": [compiled(name) for name in _KERNELS],
        "programs": [mixed],
        "cuda": {
            **{"decode_batches": [NUM_SEQS], "workspace_bytes": 0, "cublaslt_version": 0},
            **{"adapted": [], "collectives": [], "slot_numbers": []},
        },
    }
    return TinyEngine(manifest, plan, {}, dict(METADATA), "text_encoder")


def encoder_bytes(engine: TinyEngine) -> bytes:
    """The file, with the kernels' names as machine code."""
    return engine.to_bytes({**engine.documents(), **{f"cubin.{name}": name.encode() for name in _KERNELS}})
