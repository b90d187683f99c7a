"""Encoders' engines of the toy model of fake_libcuda.cc: a text's row is multiples of its tokens' sum."""

import copy
from typing import Any

from tests.unit.csrc.tiny_engine import METADATA, TinyEngine
from tests.unit.cuda.toy_engine import MANIFEST, MAX_NUM_TOKENS, NUM_SEQS, PAGE, SYMBOLS, compiled, extent
from trtllm_lite.engine.format import align

SIZE = 8
_NAMES = ("token_ids", "cu_seqlens", "x", "sentence_embedding", "halves")
_INDEX = {name: number for number, name in enumerate(_NAMES)}


def _tensors(num_tokens: int) -> list[tuple[str, list[int | str], str, int]]:
    """The type, shape, kind and offset of each tensor."""
    rows = 256 + align(num_tokens * 4, 256)
    halves = rows + align(NUM_SEQS * SIZE * 4, 256)
    return [
        ("int32", ["num_tokens"], "input", 0),
        ("int32", ["num_seqs_plus_1"], "input", 0),
        ("int32", ["num_tokens"], "arena", 256),
        ("float32", ["num_seqs", SIZE], "arena", rows),
        ("bfloat16", ["num_tokens", 64], "arena", halves),  # for the kernel probe
    ]


def _launch(kernel: int, rows: str, *tensors: str | None) -> dict[str, Any]:
    arguments = [None if name is None else {"tensor": _INDEX[name], "offset": 0} for name in tensors]
    return {"kind": "launch", "kernel": kernel, "grid": [extent(rows), 1, 1], "args": arguments, "programmatic": False}


_KERNELS = ("embed", "pool_sums", "probe")


def _probe(num_tokens: int) -> dict[str, Any]:
    """A launch that looks at a tensor map."""
    matrix = {"tensor": _INDEX["halves"], "offset": 0, "rows": num_tokens, "columns": 64}
    boxes = {"tensor_map": {**matrix, "box_rows": 8, "box_columns": 64}}
    arguments = [{"int": 3}, boxes, {"int": 5}, {"tensor": matrix["tensor"], "offset": 0}]
    return {"kind": "launch", "kernel": 2, "grid": [extent("num_seqs"), 1, 1], "args": arguments, "programmatic": False}


def make_toy_encoder(num_tokens: int = MAX_NUM_TOKENS) -> TinyEngine:
    """A valid engine whose parts may be changed; a step, and if ``num_tokens`` is given a text, has as many tokens."""
    manifest = copy.deepcopy(MANIFEST)
    if num_tokens != MAX_NUM_TOKENS:
        longest = dict.fromkeys(("max_num_tokens", "max_seq_len", "max_input_len"), num_tokens)
        manifest["limits"] = {**manifest["limits"], **longest}
    tensors = _tensors(num_tokens)
    symbols = {name: bound for name, bound in SYMBOLS.items() if name not in ("num_tables", "num_blocks")}
    symbols |= dict.fromkeys(("num_tokens", "num_prefill_tokens"), num_tokens)
    symbols["max_blocks_per_seq"] = -(-manifest["limits"]["max_seq_len"] // PAGE)
    geometry = dict.fromkeys(("num_blocks", "bytes_per_block"), 0)
    manifest["kv_cache"] = {"tokens_per_block": PAGE, "groups": [], **geometry}
    mixed = {"name": "mixed", "arch": "sm_90a", "decode_only": False, "max_tokens": num_tokens, "adapters": False}
    mixed["instructions"] = [
        _launch(0, "num_tokens", "x", "token_ids", None, None),
        _launch(1, "num_seqs", "sentence_embedding", "x", "cu_seqlens"),
        _probe(num_tokens),
    ]
    plan = {
        "symbols": symbols,
        "arena_bytes": tensors[-1][-1] + num_tokens * 128,
        "state_bytes": 0,
        "tensors": [
            {"name": name, "dtype": dtype, "shape": shape, "layout": "row_major", "kind": kind, "offset": offset}
            for name, (dtype, shape, kind, offset) in zip(_NAMES, tensors, strict=True)
        ],
        "outputs": {"sentence_embedding": _INDEX["sentence_embedding"]},
        "inputs": {},
        "tallies": [],
        "shared_experts": [],
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
