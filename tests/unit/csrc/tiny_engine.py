"""A small valid engine written by hand, without the builder: one decoder layer with random weights, about 30 kB.

Tests change its parts (:class:`TinyEngine`) and serialize it again, with checksums that match or not.
"""

import copy
import json
import pickle
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from trtllm_lite._core import crc32c
from trtllm_lite.common.vocabulary import PLAN_VERSION

HIDDEN, VOCAB, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE = 16, 70, 2, 1, 8, 24
QKV = (HEADS + 2 * KV_HEADS) * HEAD_DIM
MAX_BATCH_SIZE, MAX_SEQ_LEN, MAX_NUM_TOKENS, TOKENS_PER_BLOCK = 2, 48, 32, 16
NUM_BLOCKS = MAX_BATCH_SIZE * MAX_SEQ_LEN // TOKENS_PER_BLOCK
SAFETENSORS_DTYPES = {"float32": "F32", "uint8": "U8", "float16": "F16", "int32": "I32"}
HEADER_CHECKSUM_KEY = '"header_crc32c":"'

SYMBOLS = {
    "num_tokens": MAX_NUM_TOKENS,
    "num_seqs": MAX_BATCH_SIZE,
    "num_seqs_plus_1": MAX_BATCH_SIZE + 1,
    "num_decode_seqs": MAX_BATCH_SIZE,
    "num_prefill_seqs": MAX_BATCH_SIZE,
    "num_prefill_tokens": MAX_NUM_TOKENS,
    "num_tables": MAX_BATCH_SIZE,
    "num_logits": MAX_BATCH_SIZE,
    "max_blocks_per_seq": MAX_SEQ_LEN // TOKENS_PER_BLOCK,
    "num_blocks": NUM_BLOCKS,
    "num_slots": MAX_BATCH_SIZE + 8,
}
# The entries of a manifest that the C++ runtime does not read, except for those under "model".
PYTHON_ONLY: dict[str, Any] = {
    "producer": "handmade",
    "gather_context_logits": False,
    "files": {},
    "memory": {"weights": 0, "kv_cache": 0, "workspace": 0},
    "fusions": [],
    "num_parameters": 0,
    "mapping": {"tp_size": 1, "rank": 0, "pp_size": 1, "moe_ep_size": 1},
    "allreduce_strategy": "AUTO",
    "stripped": False,
    "plugins": [],
    "qformat": "full_prec",
    "tactics": [],
    "expansions": [],
    "accuracy": None,
    "deterministic": False,
    "lora": None,
    "state_rounding": None,
    "state_forms": [],
}


def cache_group(name: str, shape: tuple[int, ...], dtype: str, layer: int = 0) -> dict[str, Any]:
    """A cache group of one layer without a window, of keys and values that have ``shape`` elements a token."""
    kept = {"dtype": dtype, "shape": list(shape)}
    caches = [{"layer": layer, "name": cache, **kept} for cache in ("key_cache", "value_cache")]
    return {"name": name, "kind": "full", "window": 0, "caches": caches, "blocks": 1}


MANIFEST: dict[str, Any] = {
    **PYTHON_ONLY,
    "target": {"kind": "cpu", "archs": []},
    "model": {"vocab_size": VOCAB, "dtype": "float32"},
    "limits": {
        "max_batch_size": MAX_BATCH_SIZE,
        "max_input_len": 24,
        "max_seq_len": MAX_SEQ_LEN,
        "max_num_tokens": MAX_NUM_TOKENS,
        "max_draft_len": 0,
        "max_beam_width": MAX_BATCH_SIZE,
    },
    "kv_cache": {
        "tokens_per_block": TOKENS_PER_BLOCK,
        "num_blocks": NUM_BLOCKS,
        "bytes_per_block": 2 * KV_HEADS * HEAD_DIM * TOKENS_PER_BLOCK * 4,
        "groups": [cache_group("full", (KV_HEADS, HEAD_DIM), "float32")],
    },
}
METADATA = {"format": "trtllm_lite.engine", "format_version": "1", "plan_version": str(PLAN_VERSION)}
INPUTS = {
    "token_ids": ["num_tokens"],
    "position_ids": ["num_tokens"],
    "cu_seqlens": ["num_seqs_plus_1"],
    "past_lens": ["num_seqs"],
    "block_tables": ["num_tables", "max_blocks_per_seq"],
    "logits_indices": ["num_logits"],
}
CACHES = {
    "key_cache.0": ["num_blocks", KV_HEADS, HEAD_DIM, TOKENS_PER_BLOCK],
    "value_cache.0": ["num_blocks", KV_HEADS, TOKENS_PER_BLOCK, HEAD_DIM],
}
# name -> (logical shape, layout)
WEIGHTS: dict[str, tuple[tuple[int, ...], str]] = {
    "embedding": ((VOCAB, HIDDEN), "panel64"),
    "inv_freq": ((HEAD_DIM // 2,), "row_major"),
    "norm": ((HIDDEN,), "row_major"),
    "qkv": ((QKV, HIDDEN), "panel64"),
    "o": ((HIDDEN, HEADS * HEAD_DIM), "panel64"),
    "gate_up": ((2, INTERMEDIATE, HIDDEN), "gated_panel64"),
    "down": ((HIDDEN, INTERMEDIATE), "panel64"),
}
ACTIVATIONS: dict[str, list[int | str]] = {
    "x": ["num_tokens", HIDDEN],
    "cos": ["num_tokens", HEAD_DIM // 2],
    "sin": ["num_tokens", HEAD_DIM // 2],
    "n1": ["num_tokens", HIDDEN],
    "qkv_out": ["num_tokens", QKV],
    "attention": ["num_tokens", HEADS * HEAD_DIM],
    "o_out": ["num_tokens", HIDDEN],
    "n2": ["num_tokens", HIDDEN],
    "sum2": ["num_tokens", HIDDEN],
    "act": ["num_tokens", INTERMEDIATE],
    "down_out": ["num_tokens", HIDDEN],
    "n3": ["num_tokens", HIDDEN],
    "last": ["num_logits", HIDDEN],
    "logits": ["num_logits", VOCAB],
}
# The names of each operator's operands, inputs and then outputs; outputs that alias an input are not among them.
OPERANDS = {
    "Embedding": ("token_ids", "weight", "y"),
    "RotaryTable": ("position_ids", "inv_freq", "cos", "sin"),
    "RmsNorm": ("x", "weight", "residual", "y", "sum"),
    "Linear": ("x", "weight", "bias", "y"),
    "GatedLinear": ("x", "weight", "bias", "y"),
    "GatherRows": ("x", "indices", "y"),
    "PagedAttention": (
        *("qkv", "cos", "sin", "key_cache", "value_cache", "cu_seqlens", "past_lens", "block_tables"),
        *("query_norm", "key_norm", "y"),
    ),
}
EPSILON: dict[str, float | str] = {"epsilon": 1e-5}
ATTENTION: dict[str, float | str] = {
    "num_heads": HEADS,
    "scale": HEAD_DIM**-0.5,
    "window": 0,
    "chunked": 0,
    "floor_scale": 0,
    "floor_offset": 0,
    "attn_scale": 0.0,
    "first_position": 0,
    "cache_group": 0,
    "softcap": 0.0,
    "norm_epsilon": 0.0,
    "norm_after_rope": 0,
    "appends": 1,
    "key_scale": 1.0,
    "value_scale": 1.0,
}
# op, operands in the order of OPERANDS ("" = absent), attributes
CALLS: list[tuple[str, list[str], dict[str, float | str]]] = [
    ("Embedding", ["token_ids", "embedding", "x"], {"scale": 1.0}),
    ("RotaryTable", ["position_ids", "inv_freq", "cos", "sin"], {"scale": 1.0}),
    ("RmsNorm", ["x", "norm", "", "n1", ""], EPSILON),
    ("Linear", ["n1", "qkv", "", "qkv_out"], {"activation": "none"}),
    (
        "PagedAttention",
        ["qkv_out", "cos", "sin", *CACHES, "cu_seqlens", "past_lens", "block_tables", "", "", "attention"],
        ATTENTION,
    ),
    ("Linear", ["attention", "o", "", "o_out"], {"activation": "none"}),
    ("RmsNorm", ["o_out", "norm", "x", "n2", "sum2"], EPSILON),
    ("GatedLinear", ["n2", "gate_up", "", "act"], {"activation": "silu"}),
    ("Linear", ["act", "down", "", "down_out"], {"activation": "none"}),
    ("RmsNorm", ["down_out", "norm", "sum2", "n3", ""], EPSILON),
    ("GatherRows", ["n3", "logits_indices", "last"], {}),
    ("Linear", ["last", "embedding", "", "logits"], {"activation": "none"}),
]


def pack(weight: np.ndarray, layout: str) -> np.ndarray:
    """The weight in a layout of plugins/README.md, computed here so that tests do not trust the builder's layouts."""
    if layout == "row_major":
        return weight
    width = 64 if layout == "panel64" else 32
    rows, depth = weight.shape[-2:]
    panels = -(-rows // width)
    halves = weight.reshape(-1, rows, depth)
    padded = np.zeros((len(halves), panels * width, depth), weight.dtype)
    padded[:, :rows] = halves
    return np.ascontiguousarray(padded.reshape(-1, panels, width, depth).transpose(1, 3, 0, 2)).reshape(
        panels, depth, 64
    )


def _is_row_of_floats(tensor: dict[str, Any]) -> bool:
    is_float = tensor["dtype"] in ("float32", "float16", "bfloat16")
    return is_float and tensor["kind"] == "arena" and len(tensor["shape"]) == 2


@dataclass
class TinyEngine:
    """The parts of an engine file. ``entries`` are in file order; ``plan``'s weight offsets are filled when written.

    Unless ``manifest`` says what modules there are, or ``kind`` is None, it gets one of this kind that fits the plan.
    """

    manifest: dict[str, Any]
    plan: dict[str, Any]
    weights: dict[str, np.ndarray]
    metadata: dict[str, str] = field(default_factory=lambda: dict(METADATA))
    kind: str | None = "decoder"

    def copy(self) -> "TinyEngine":
        """A copy whose parts may be changed; weights are shared."""
        manifest, plan = pickle.loads(pickle.dumps((self.manifest, self.plan)))  # in a fifth of deepcopy's time
        return TinyEngine(manifest, plan, dict(self.weights), dict(self.metadata), self.kind)

    def tensor(self, name: str) -> dict[str, Any]:
        """The plan's tensor of this name."""
        return next(tensor for tensor in self.plan["tensors"] if tensor["name"] == name)

    def instruction(self, op: str) -> dict[str, Any]:
        """The plan's first call of ``op``."""
        return next(call for call in self.instructions() if call["op"] == op)

    def instructions(self) -> list[dict[str, Any]]:
        """The calls of the plan's one program."""
        instructions: list[dict[str, Any]] = self.plan["programs"][0]["instructions"]
        return instructions

    def set_limits(self, max_batch_size: int, num_logits: int) -> None:
        """Makes room for larger steps; the KV cache holds ``max_batch_size`` sequences of MAX_SEQ_LEN."""
        num_blocks = max_batch_size * MAX_SEQ_LEN // TOKENS_PER_BLOCK
        self.manifest["limits"]["max_batch_size"] = max_batch_size
        self.manifest["kv_cache"]["num_blocks"] = num_blocks
        symbols = self.plan["symbols"]
        symbols |= dict.fromkeys(("num_seqs", "num_decode_seqs", "num_prefill_seqs", "num_tables"), max_batch_size)
        symbols |= {"num_seqs_plus_1": max_batch_size + 1, "num_slots": max_batch_size + 8}
        symbols |= {"num_logits": num_logits, "num_blocks": num_blocks}
        offset = 0
        for tensor in self.plan["tensors"]:
            if tensor["kind"] == "arena":
                tensor["offset"] = offset
                offset += MAX_NUM_TOKENS * -(-max(HIDDEN, tensor["shape"][1]) // 16) * 64
        self.plan["arena_bytes"] = offset

    def poison(self, token: int) -> None:
        """Makes the token's embedding NaN; its row of the LM head, and so its logit, stays finite."""
        panels = self.weights["embedding"].copy()  # [panel, HIDDEN, 64]
        panels[token // 64, :, token % 64] = np.nan
        self.weights["embedding_of_tokens"] = panels
        self.plan["tensors"].append(self.tensor("embedding") | {"name": "embedding_of_tokens"})
        self.instruction("Embedding")["operands"]["weight"] = len(self.plan["tensors"]) - 1
        self.place_weights()

    def reorder_last_rows(self, order: list[int]) -> None:
        """Lets a GatherColumns bring the features that the LM head reads into an ``order``."""
        tensors, logits = self.plan["tensors"], self.instructions()[-1]
        self.weights["order"] = np.array(order, np.int32)
        kinds = {"order": ("int32", [len(order)], "weight", 0)}
        kinds["reordered"] = ("float32", self.tensor("last")["shape"], "arena", self.plan["arena_bytes"])
        for name, (dtype, shape, kind, offset) in kinds.items():
            about = {"name": name, "dtype": dtype, "shape": shape, "kind": kind}
            tensors.append(about | {"layout": "row_major", "offset": offset})
        self.plan["arena_bytes"] += MAX_NUM_TOKENS * HIDDEN * 4
        operands = {"x": logits["operands"]["x"], "order": len(tensors) - 2, "y": len(tensors) - 1}
        logits["operands"]["x"] = operands["y"]
        gather = {"kind": "call", "op": "GatherColumns", "operands": operands, "attributes": {}}
        self.instructions().insert(-1, gather)
        self.place_weights()

    def take_rows(
        self, *, bound: int = MAX_NUM_TOKENS, size: int = HIDDEN, reads: bool = True, dtype: str = "float32"
    ) -> None:
        """Lets rows take the place of tokens, or uint8, which a Rowwise makes rows of.

        Other arguments than these make an invalid engine.
        """
        tensors = self.plan["tensors"]
        self.plan["symbols"]["num_token_rows"] = bound
        rows = {"name": "token_rows", "dtype": dtype, "shape": ["num_token_rows", size], "layout": "row_major"}
        tensors.append(rows | {"kind": "input", "offset": 0})
        if dtype == "uint8":
            place = {"name": "made_rows", "dtype": "float32", "kind": "arena", "offset": self.plan["arena_bytes"]}
            tensors.append(rows | place)
            self.plan["arena_bytes"] += MAX_NUM_TOKENS * HIDDEN * 4
            operands = {"x0": len(tensors) - 2, "y": len(tensors) - 1}
            attributes = {"program": "x0", "x1_first": 0}
            made = {"kind": "call", "op": "Rowwise", "operands": operands, "attributes": attributes}
            self.instructions().insert(0, made)
        if reads:
            self.instruction("Embedding")["operands"]["token_rows"] = len(tensors) - 1

    def place_weights(self) -> None:
        """Sets the offsets of weights in the plan to where :meth:`to_bytes` puts them."""
        offset = 0
        for name, array in self.weights.items():
            self.tensor(name)["offset"] = offset
            offset += -(-array.nbytes // 64) * 64

    def modules(self) -> list[dict[str, Any]]:
        """The module that fits the plan: rows of floats flow in and out, and so do features, if there are some."""
        tensors, drafts = self.plan["tensors"], self.kind == "drafting_head"

        def port(name: str, tensor: dict[str, Any]) -> dict[str, Any]:
            return {"name": name, "dtype": tensor["dtype"], "shape": tensor["shape"]}

        def rows(places: dict[str, int]) -> list[dict[str, Any]]:
            named = {name: tensors[index] for name, index in places.items() if index < len(tensors)}
            return [port(name, tensor) for name, tensor in named.items() if _is_row_of_floats(tensor)]

        given = [port("token_rows", tensor) for tensor in tensors if tensor["name"] == "token_rows"]
        kept = [port("features", tensor) for tensor in tensors if tensor["name"] == "features"]
        return [
            {
                **{"name": self.kind, "kind": self.kind},
                "inputs": rows(self.plan["inputs"]) + given + (kept if drafts else []),
                "outputs": rows(self.plan["outputs"]) + ([] if drafts else kept),
                "caches": [group["name"] for group in self.manifest["kv_cache"]["groups"]],
                "tokens_per_row": 0,
            }
        ]

    def fix_modules(self) -> None:
        """Lets the manifest describe the module as it is now, whatever changes later."""
        self.manifest["modules"] = self.modules()
        self.kind = None

    def documents(self) -> dict[str, bytes]:
        """The JSON entries."""
        given = self.kind is None or "modules" in self.manifest
        manifest = self.manifest if given else {"modules": self.modules(), **self.manifest}
        return {"manifest": json.dumps(manifest).encode(), "plan": json.dumps(self.plan).encode()}

    def to_bytes(
        self,
        documents: dict[str, bytes] | None = None,
        edit_header: Callable[[dict[str, Any]], None] | None = None,
        edit_header_text: Callable[[str], str] | None = None,
    ) -> bytes:
        """The file, with correct checksums, also of an edited header if the key of its checksum is still there."""
        entries = [(f"weights.{name}", array) for name, array in self.weights.items()]
        for name, text in (documents or self.documents()).items():
            entries.append((name, np.frombuffer(text, np.uint8)))
        header, data = _lay_out(entries, self.metadata)
        if edit_header is not None:
            edit_header(header)
        text = json.dumps(header, separators=(",", ":"))
        if edit_header_text is not None:
            text = edit_header_text(text)
        return seal(text.encode()) + data


def _lay_out(entries: list[tuple[str, np.ndarray]], metadata: dict[str, str]) -> tuple[dict[str, Any], bytes]:
    data, described = bytearray(), {}
    checksums = {}

    def add(name: str, array: np.ndarray) -> None:
        begin = len(data)
        data.extend(array.tobytes())
        described[name] = {
            "dtype": SAFETENSORS_DTYPES[str(array.dtype)],
            "shape": list(array.shape),
            "data_offsets": [begin, len(data)],
        }
        checksums[name] = f"{crc32c(array.tobytes()):08x}"

    for name, array in entries:
        add(name, array)
        if len(data) % 64:
            add(f"padding.{len(described)}", np.zeros(64 - len(data) % 64, np.uint8))
    sealed = {**metadata, "checksums": json.dumps(checksums), "header_crc32c": "0" * 8}
    return {"__metadata__": sealed, **described}, bytes(data)


def seal(header: bytes) -> bytes:
    """Pads a header text, fills in its checksum if it has the key for one, and puts its length in front."""
    header += b" " * (-(8 + len(header)) % 64)
    at = header.find(HEADER_CHECKSUM_KEY.encode())
    if at >= 0:
        at += len(HEADER_CHECKSUM_KEY)
        header = header[:at] + b"00000000" + header[at + 8 :]
        header = header[:at] + f"{crc32c(header):08x}".encode() + header[at + 8 :]
    return struct.pack("<Q", len(header)) + header


def make_tiny_engine() -> TinyEngine:
    """A valid engine."""
    rng = np.random.default_rng(0)
    weights = {
        name: pack(rng.standard_normal(shape, np.float32) / np.float32(4), layout)
        for name, (shape, layout) in WEIGHTS.items()
    }
    tensors, arena_bytes = [], 0

    def add(name: str, dtype: str, shape: Any, kind: str, layout: str = "row_major", offset: int = 0) -> None:
        tensors.append(
            {"name": name, "dtype": dtype, "shape": list(shape), "layout": layout, "kind": kind, "offset": offset}
        )

    for name, shape in INPUTS.items():
        add(name, "int32", shape, "input")
    end = 0
    for name, cache in CACHES.items():
        add(name, "float32", cache, "cache", offset=end)
        end += 4 * prod(cache[1:])
    for name, (logical, layout) in WEIGHTS.items():
        add(name, "float32", logical, "weight", layout)
    for name, activation in ACTIVATIONS.items():
        add(name, "float32", activation, "arena", offset=arena_bytes)
        size = np.prod([SYMBOLS[extent] if isinstance(extent, str) else extent for extent in activation]) * 4
        arena_bytes += -(-int(size) // 64) * 64
    index = {tensor["name"]: i for i, tensor in enumerate(tensors)}
    instructions = [
        {
            "kind": "call",
            "op": op,
            "operands": {role: index[name] for role, name in zip(OPERANDS[op], operands, strict=True) if name},
            "attributes": dict(attributes),
        }
        for op, operands, attributes in CALLS
    ]
    step = {"name": "step", "arch": "cpu", "decode_only": False, "max_tokens": MAX_NUM_TOKENS, "adapters": False}
    plan = {
        "symbols": dict(SYMBOLS),
        "arena_bytes": arena_bytes,
        "state_bytes": 0,
        "tensors": tensors,
        "outputs": {"logits": index["logits"]},
        "inputs": {},
        "tallies": [],
        "shared_experts": [],
        "kernels": [],
        "programs": [step | {"instructions": instructions}],
        "cuda": None,
    }
    engine = TinyEngine(copy.deepcopy(MANIFEST), plan, weights)
    engine.place_weights()
    return engine
