"""The engine reader refuses known kinds of wrong engines with clear messages; the fuzzer beside it finds others."""

import copy
import json
import os
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.csrc.tiny_engine import HEAD_DIM, HIDDEN, KV_HEADS, MANIFEST, TOKENS_PER_BLOCK, TinyEngine, cache_group
from trtllm_lite._core import Engine
from trtllm_lite.common.vocabulary import MAX_JSON_BYTES, PLAN_VERSION
from trtllm_lite.errors import EngineError

Change = Callable[[TinyEngine], Any]


@pytest.fixture
def open_bytes(tmp_path: Path) -> Callable[[bytes], Engine]:
    """Opens bytes as an engine file."""

    def write_and_open(data: bytes) -> Engine:
        path = tmp_path / "rank0.engine"
        path.write_bytes(data)
        return Engine(str(path))

    return write_and_open


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_opens_an_engine_that_takes_rows(tiny: TinyEngine, open_bytes: Callable[[bytes], Engine], dtype: str) -> None:
    engine = tiny.copy()
    engine.take_rows(dtype=dtype)
    (module,) = json.loads(open_bytes(engine.to_bytes()).manifest)["modules"]
    assert [(port["name"], port["dtype"]) for port in module["inputs"]] == [("token_rows", dtype)]


def test_opens_a_valid_engine(tiny: TinyEngine, open_bytes: Callable[[bytes], Engine]) -> None:
    data = tiny.to_bytes()
    engine = open_bytes(data)
    assert json.loads(engine.manifest) == MANIFEST | {"modules": tiny.modules()}
    assert json.loads(engine.plan) == tiny.plan
    assert engine.file_bytes == len(data)


def test_message_has_path_expected_found_remedy(tiny: TinyEngine, open_bytes, tmp_path: Path) -> None:
    data = bytearray(tiny.to_bytes())
    data[-700] ^= 1
    with pytest.raises(EngineError) as error:
        open_bytes(bytes(data))
    message = str(error.value)
    assert message.startswith(f"{tmp_path}/rank0.engine: entry plan: expected checksum ")
    assert "found" in message
    assert message.endswith("copy the engine again, or build it again (trtllm-lite build)")


@pytest.mark.parametrize("size", [4 << 20, (9 << 20) + 5])
def test_entries_whose_pieces_are_checked_by_several_threads(tiny: TinyEngine, open_bytes, size: int) -> None:
    large = np.random.default_rng(0).bytes(size)
    data = tiny.to_bytes(documents={"padding.large": large, **tiny.documents()})
    open_bytes(data)
    first = data.index(large[:64])
    for place in (0, size // 2, size - 1):
        changed = bytearray(data)
        changed[first + place] ^= 1
        with pytest.raises(EngineError, match=r"entry padding\.large: expected checksum"):
            open_bytes(bytes(changed))


@pytest.mark.parametrize(("field", "ours"), [("format_version", 1), ("plan_version", PLAN_VERSION)])
def test_newer_version(tiny: TinyEngine, open_bytes, field: str, ours: int) -> None:
    tiny.metadata[field] = str(ours + 1)
    with pytest.raises(EngineError, match=f"expected version {ours}, found version {ours + 1}; install the"):
        open_bytes(tiny.to_bytes())


def test_newer_container_needs_nothing_else_in_place(open_bytes) -> None:
    """The version is read before any part that a newer version may have changed."""
    header = json.dumps({"__metadata__": {"format": "trtllm_lite.engine", "format_version": "2"}}).encode()
    header += b" " * (-(8 + len(header)) % 64)
    with pytest.raises(EngineError, match="found version 2"):
        open_bytes(struct.pack("<Q", len(header)) + header)


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"absent.*No such file.*give the directory that trtllm-lite build wrote"):
        Engine(str(tmp_path / "absent"))
    with pytest.raises(EngineError, match="not a regular file"):
        Engine(str(tmp_path))
    (tmp_path / "empty").touch()
    with pytest.raises(EngineError, match="an empty file"):
        Engine(str(tmp_path / "empty"))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(EngineError, match="not a regular file"):
        Engine(str(tmp_path / "pipe"))


def test_both_readers_take_the_same_length_of_json(tmp_path: Path) -> None:
    path = tmp_path / "rank0.engine"
    with path.open("wb") as file:  # the file is sparse
        file.write(struct.pack("<Q", MAX_JSON_BYTES + 64 - 8))
        file.truncate(MAX_JSON_BYTES + 4096)
    with pytest.raises(EngineError, match=f"header: expected at most {MAX_JSON_BYTES} bytes, found a length of"):
        Engine(str(path))


FILES = {
    "a few bytes": (lambda _: b"abc", "expected at least the 8 bytes that hold its length, found a file of 3 bytes"),
    "text": (lambda _: b"hello world, this is no engine" * 9, "header: expected at most .* bytes, found a length of"),
    "length not padded": (lambda _: struct.pack("<Q", 3) + b"{} ", "expected padding to 64 bytes"),
    "another safetensors file": (lambda e: e.to_bytes(edit_header=lambda h: h.pop("__metadata__")), '"__metadata__"'),
    "another format": (
        lambda e: e.to_bytes(edit_header=lambda h: h["__metadata__"].update(format="pt")),
        'format: expected "trtllm_lite.engine", found "pt"',
    ),
    "truncated": (lambda e: e.to_bytes()[:-64], "truncated|expected an integer from"),
    "longer": (lambda e: e.to_bytes() + bytes(64), "expected .* bytes of data, found"),
    "duplicate entry": (
        lambda e: e.to_bytes(edit_header_text=lambda t: t.replace('"weights.o":', '"weights.qkv":')),
        'header: expected every key once, found "weights.qkv" twice',
    ),
    "overlapping entries": (
        lambda e: e.to_bytes(edit_header=lambda h: h["weights.qkv"].update(data_offsets=[0, 4096])),
        "weights.qkv.data_offsets|expected an entry at byte",
    ),
    "negative extent": (
        lambda e: e.to_bytes(edit_header=lambda h: h["weights.o"].update(shape=[-1, 16, 64])),
        r"weights.o.shape\[0\]: expected an integer from 1",
    ),
    "size that overflows": (
        lambda e: e.to_bytes(edit_header=lambda h: h["weights.o"].update(shape=[2**40, 2**40, 64])),
        r"weights.o.shape\[1\]: expected an extent that fits",
    ),
    "missing checksum": (
        lambda e: e.to_bytes(edit_header=lambda h: h["__metadata__"].update(checksums="{}")),
        "expected 1[0-9] checksums, found 0",
    ),
    "unknown dtype": (
        lambda e: e.to_bytes(edit_header=lambda h: h["weights.o"].update(dtype="F64")),
        'expected one of F32, F16, BF16, I64, I32, I8, F8_E4M3, U8, F8_E8M0, found "F64"',
    ),
    "nested too deep": (
        lambda e: e.to_bytes(documents={**e.documents(), "plan": b"[" * 100_000}),
        "plan: expected at most 16 levels of nesting",
    ),
    # A reader whose time is not linear in the plan's size would take minutes.
    "half a million objects": (
        lambda e: e.to_bytes(documents={**e.documents(), "plan": b"[" + b"{}," * 500_000 + b"{}]"}),
        "plan: expected an object",
    ),
    "too many values": (
        lambda e: e.to_bytes(documents={**e.documents(), "plan": b"[" + b"0," * (4 << 20) + b"0]"}),
        "plan: expected at most 4194304 values, found more",
    ),
    "not UTF-8": (
        lambda e: e.to_bytes(documents={**e.documents(), "plan": b'{"\xff": 1}'}),
        "plan: expected JSON, found a syntax error",
    ),
    "unused entry": (
        lambda e: replace(e, weights={**e.weights, "extra": np.zeros(16, np.float32)}).to_bytes(),
        "expected the 7 weights of the plan, found 8",
    ),
}


@pytest.mark.parametrize("case", FILES)
def test_refuses_containers(tiny: TinyEngine, open_bytes, case: str) -> None:
    make, message = FILES[case]
    with pytest.raises(EngineError, match=message):
        open_bytes(make(tiny))


def set_tensor(name: str, /, **fields: Any) -> Change:
    """Change one plan tensor."""
    return lambda engine: engine.tensor(name).update(fields)


def set_attribute(op: str, **attributes: Any) -> Change:
    """Change the first call of ``op``."""
    return lambda engine: engine.instruction(op)["attributes"].update(attributes)


def set_operand(op: str, operand: str, name: str) -> Change:
    """Pass another tensor ("" = none) to the first call of ``op``."""

    def change(engine: TinyEngine) -> None:
        operands = engine.instruction(op)["operands"]
        if name:
            operands[operand] = engine.plan["tensors"].index(engine.tensor(name))
        else:
            del operands[operand]

    return change


def add_sample(engine: TinyEngine) -> None:
    """Adds a call of Sample that fits its schema."""
    tensors, rows = engine.plan["tensors"], engine.plan["symbols"]["num_logits"]
    end, slots = engine.plan["arena_bytes"], engine.plan["symbols"]["num_slots"]
    step_inputs = ("sample_slots", "sample_counter", "sample_drafts", "sample_masks")
    shapes = {
        **dict.fromkeys(step_inputs, ("input", ["num_logits"], 0)),
        "last_tokens": ("state", ["num_slots"], 0),
        "token_masks": ("state", ["num_seqs", 3], 64),
        "sampling_slots": ("state", ["num_slots", 28], 128),
        "tokens": ("arena", ["num_logits"], end),
        "logprobs": ("arena", ["num_logits", 42], end + 64),
    }
    for name, (kind, shape, offset) in shapes.items():
        described = {"dtype": "int32", "shape": shape, "layout": "row_major", "kind": kind, "offset": offset}
        tensors.append({"name": name, **described})
    engine.plan.update(arena_bytes=end + 64 + rows * 42 * 4, state_bytes=128 + slots * 28 * 4)
    operands = {name: tensors.index(engine.tensor(name)) for name in ("logits", *shapes)}
    engine.instructions().append({"kind": "call", "op": "Sample", "operands": operands, "attributes": {"max_edits": 1}})


def last_stage(engine: TinyEngine) -> None:
    engine.manifest["mapping"].update(pp_size=2, rank=1)


def receive(engine: TinyEngine, *names: str) -> None:
    engine.plan["inputs"] = {name: engine.plan["tensors"].index(engine.tensor(name)) for name in names}


FEATURES = {"name": "features", "dtype": "float32", "shape": ["num_blocks", TOKENS_PER_BLOCK, 8]}


def change_module(engine: TinyEngine, change: Callable[[dict[str, Any]], object]) -> None:
    """Let the manifest describe a module that differs from the plan."""
    (module,) = copy.deepcopy(engine.modules())
    change(module)
    engine.manifest["modules"] = [module]


def add_group(engine: TinyEngine, dtype: str = "float32") -> None:
    """Let a layer 1, which the program does not compute, keep as much as layer 0, in a group of its own."""
    engine.manifest["kv_cache"]["groups"].append(cache_group("full.1", (KV_HEADS, HEAD_DIM), dtype, 1))
    engine.plan["symbols"]["num_tables"] *= 2
    caches = [tensor for tensor in engine.plan["tensors"] if tensor["kind"] == "cache"]
    own = [tensor | {"name": tensor["name"].replace(".0", ".1"), "dtype": dtype} for tensor in caches]
    engine.plan["tensors"] += own


def write_state(engine: TinyEngine) -> None:
    """Let the product of queries, keys and values lie in the state."""
    tensors = engine.plan["tensors"]
    tensors.append({**engine.tensor("qkv_out"), "name": "kept", "kind": "state", "offset": 0})
    engine.plan["state_bytes"] = 1 << 20
    set_operand("Linear", "y", "kept")(engine)


def add_tally(engine: TinyEngine, dtype: str, count: int) -> None:
    tensors = engine.plan["tensors"]
    tally = {"name": "tally", "dtype": dtype, "shape": [count], "layout": "row_major", "kind": "state", "offset": 0}
    engine.plan.update(tallies=[len(tensors)], state_bytes=8 * count)
    tensors.append(tally)


PLANS: dict[str, tuple[Change, str]] = {
    "unknown key": (lambda e: e.plan.update(extra=1), 'plan: expected no member "extra"'),
    "missing key": (lambda e: e.plan.pop("symbols"), 'plan: expected a member "symbols"'),
    "unknown operator": (
        lambda e: e.instructions()[0].update(op="Conv"),
        "operator Conv: expected an operator of trtllm_lite or of a package",
    ),
    "operator with state": (
        add_sample,
        "operator Sample: expected an operator of CPU engines, found that it keeps last_tokens between steps",
    ),
    "index out of range": (
        lambda e: e.instructions()[0]["operands"].update(weight=99),
        "expected an integer from 0",
    ),
    "unknown operand": (
        lambda e: e.instructions()[0]["operands"].update(bias=0),
        "operator Embedding: expected no operands but those of its schema",
    ),
    "missing operand": (set_operand("Linear", "weight", ""), "input weight: expected an operand, found none"),
    "collective of a weight": (
        lambda e: e.instructions().append(
            {
                "kind": "collective",
                "op": "all_reduce",
                "rows": 1,
                "x_features": 16,
                "y_features": 16,
                "dtype": "float32",
            }
            | {key: {"tensor": e.plan["tensors"].index(e.tensor("qkv")), "offset": 0} for key in "xy"}
        ),
        "collective: expected x and y to be whole arena tensors",
    ),
    "settings of a GPU": (
        lambda e: e.plan.update(
            cuda={
                **{"decode_batches": [2], "workspace_bytes": 0, "cublaslt_version": 0},
                **{"adapted": [], "collectives": [], "slot_numbers": []},
            }
        ),
        "expected settings for GPU engines alone",
    ),
    "two programs": (lambda e: e.plan["programs"].append(e.plan["programs"][0]), "the one program of a CPU engine"),
    "symbol against limit": (
        lambda e: e.plan["symbols"].update(num_tokens=16),
        "expected 32 to .* the manifest's max_num_tokens",
    ),
    "more sequences than a machine can run": (
        lambda e: (
            e.plan["symbols"].update(num_seqs=2**16 + 1, num_tokens=2**20, num_seqs_plus_1=2**16 + 2)
            or e.plan["symbols"].update(num_decode_seqs=2**16 + 1, num_prefill_seqs=2**16 + 1, num_prefill_tokens=2**20)
        ),
        "num_seqs: expected 2 to 65536, the manifest's max_batch_size or more, found 65537",
    ),
    "more tokens than a machine can run": (
        lambda e: e.plan["symbols"].update(num_tokens=2**24 + 1),
        "num_tokens: expected 32 to 16777216",
    ),
    "duplicate tensor": (
        set_tensor("value_cache.0", name="key_cache.0"),
        "expected a name that no other weight",
    ),
    "attribute missing": (
        lambda e: e.instruction("RmsNorm")["attributes"].clear(),
        "expected the attribute epsilon",
    ),
    "attribute unknown": (set_attribute("RmsNorm", bias=1), "expected no attributes but those of its schema"),
    "attribute not finite": (set_attribute("RmsNorm", epsilon=float("inf")), "syntax error|finite"),
    "attribute of wrong type": (
        set_attribute("PagedAttention", num_heads=2.0),
        "expected an integer as the attr",
    ),
    "head counts": (set_attribute("PagedAttention", num_heads=3), "expected qkv_features == .*num_heads=3"),
    "unknown choice": (
        set_attribute("Linear", activation="relu"),
        "expected one of none silu gelu gelu_tanh relu2 as the attribute activation",
    ),
    "choice that is a number": (set_attribute("GatedLinear", activation=1), "expected one of silu gelu gelu_tanh"),
    "sines alone": (
        set_operand("PagedAttention", "cos", ""),
        "input cos: expected an operand if and only if there is one for sin",
    ),
    "negative window": (set_attribute("PagedAttention", window=-1), "expected window >= 0"),
    "dtype": (set_tensor("n1", dtype="float16"), "dtype float16 is not one that the operator takes"),
    "rank": (set_tensor("n1", shape=["num_tokens", 4, 4]), "expected rank 2, found 3"),
    "shapes disagree": (set_tensor("act", shape=["num_tokens", 25]), "out_features = 25, found 24|found 25"),
    "symbols disagree": (set_tensor("x", shape=["num_seqs", 16]), "expected num_tokens = num_tokens, found num_seqs"),
    "outside the arena": (set_tensor("logits", offset=2**20), "expected to lie inside the arena"),
    "unaligned": (set_tensor("logits", offset=4), "multiple of 64"),
    "size overflows": (set_tensor("x", shape=[2**30 - 1] * 4), "expected a size of at most"),
    "arena of num_blocks": (set_tensor("x", shape=["num_blocks", 16]), "expected a shape without num_blocks"),
    "weight at another offset": (set_tensor("o", offset=64), "expected the offset of its entry"),
    "weight of another shape": (set_tensor("o", shape=[80, 16]), "shape in which its layout is stored"),
    "weight of another dtype": (set_tensor("o", dtype="bfloat16"), "expected an entry of dtype BF16, found F32"),
    "weight that is not there": (set_tensor("o", name="oo"), 'expected an entry "weights.oo"'),
    "cache of another shape": (
        set_tensor("key_cache.0", shape=["num_blocks", 2, 8, 16]),
        "expected what the manifest says that full keeps of tokens_per_block tokens under this name",
    ),
    "caches of a group that overlap": (
        set_tensor("value_cache.0", offset=64),
        "expected caches of full that do not overlap",
    ),
    "a cache beyond the end of blocks": (
        set_tensor("value_cache.0", offset=1024),
        "expected KV caches of 1024 bytes a block in all, as the manifest says, found 1536",
    ),
    "input of another shape": (set_tensor("token_ids", shape=["num_seqs"]), "shape of the step input of this name"),
    "input of another name": (set_tensor("token_ids", name="tokens"), "expected the name of a step input"),
    "indices from another step input": (
        set_operand("Embedding", "token_ids", "position_ids"),
        "expected the step input token_ids, found position_ids",
    ),
    "a constant index below 0": (
        lambda e: e.reorder_last_rows([*range(15), -1]),
        "input order: expected indices from 0 to 15, found -1 in order",
    ),
    "a constant index too large": (
        lambda e: e.reorder_last_rows([16, *range(15)]),
        "input order: expected indices from 0 to 15, found 16 in order",
    ),
    "constant indices that a step gives": (
        lambda e: (e.reorder_last_rows(list(range(16))), set_operand("GatherColumns", "order", "token_ids")(e)),
        "output y: axis 1: expected columns = num_tokens|expected a weight of indices",
    ),
    "read before written": (set_operand("RmsNorm", "x", "n3"), "n3, which was never written"),
    "overwritten": (lambda e: e.tensor("n2").update(offset=e.tensor("x")["offset"]), "overlaps residual"),
    "output on input": (lambda e: e.tensor("n1").update(offset=e.tensor("x")["offset"]), "output y: .* overlaps x"),
    "output on output": (lambda e: e.tensor("sin").update(offset=e.tensor("cos")["offset"]), "overlaps another output"),
    "output is a weight": (set_operand("Linear", "y", "qkv"), "output y|layout|axis"),
    "output is a cache": (set_operand("PagedAttention", "y", "value_cache.0"), "overlaps another output|axis|rank"),
    "output is state": (write_state, "output y: expected no state, found kept"),
    "counts of a router that are a weight": (
        lambda e: e.plan.update(tallies=[0]),
        r"plan\.tallies: expected a count of each expert and 3 more in the state, found ",
    ),
    "counts of no expert": (lambda e: add_tally(e, "int64", 3), "expected a count of each expert and 3 more"),
    "counts of 32 bits": (lambda e: add_tally(e, "int32", 8), "expected a count of each expert and 3 more"),
    "logits not written": (
        lambda e: e.instructions().pop(),
        "outputs.logits: expected an arena tensor that holds",
    ),
    "logits of another shape": (
        lambda e: e.plan["outputs"].update(logits=0),
        "outputs.logits: expected float32 in the arena",
    ),
    "an output that is no row of activations": (
        lambda e: e.plan["outputs"].update(more=next(i for i, t in enumerate(e.plan["tensors"]) if t["name"] == "qkv")),
        "outputs.more: expected floating-point rows in the arena",
    ),
    "room for few rows": (lambda e: e.take_rows(bound=1), "num_token_rows: expected 32"),
    "room for rows that nothing takes": (
        lambda e: e.plan["symbols"].update(num_token_rows=32),
        "num_token_rows: expected 0, num_tokens if rows take the place of tokens",
    ),
    "rows that nothing reads": (
        lambda e: e.take_rows(reads=False),
        "expected Embedding to read token_rows if and only if that is an input",
    ),
    "rows of a type that none have": (
        lambda e: e.take_rows(dtype="int8"),
        "tensor token_rows: expected rows of floats of 32 bits, or of uint8, with the shape of the step input",
    ),
    "rows of 16 bits on a CPU": (lambda e: e.take_rows(dtype="float16"), "expected rows of floats of 32 bits"),
    "bytes in place of embeddings": (
        lambda e: (e.take_rows(dtype="uint8"), set_operand("Embedding", "token_rows", "token_rows")(e)),
        "token_rows",
    ),
    "rows made of other rows than there are": (
        lambda e: (e.take_rows(dtype="uint8"), set_operand("Embedding", "token_rows", "x")(e)),
        "token_rows",
    ),
    "rows of another size": (lambda e: e.take_rows(size=HIDDEN - 1), "hidden"),
    "received by the first stage": (
        lambda e: receive(e, "x"),
        r"plan\.inputs: expected values from the previous stage in every stage but the first",
    ),
    "received as a step input": (
        lambda e: last_stage(e) or receive(e, "past_lens"),
        r"plan\.inputs\.past_lens: expected a row of floats of 32 bits for each token, in the arena",
    ),
    "two tensors received into the same bytes": (
        lambda e: last_stage(e) or receive(e, "x", "n1") or e.tensor("n1").update(offset=e.tensor("x")["offset"]),
        r"plan\.inputs\..*: expected storage of its own",
    ),
}


@pytest.mark.parametrize("case", PLANS)
def test_refuses_plans(tiny: TinyEngine, open_bytes, case: str) -> None:
    change, message = PLANS[case]
    change(tiny)
    with pytest.raises(EngineError, match=message):
        open_bytes(tiny.to_bytes())


MANIFESTS: dict[str, tuple[Change, str]] = {
    "another target": (lambda e: e.manifest["target"].update(kind="npu"), "target.kind: expected one of cpu, cuda"),
    "half a GPU target": (
        lambda e: e.manifest["target"].update(kind="cuda"),
        "expected settings for GPU engines alone",
    ),
    "limits missing": (lambda e: e.manifest["limits"].pop("max_seq_len"), 'expected a member "max_seq_len"'),
    "limit zero": (lambda e: e.manifest["limits"].update(max_seq_len=0), "max_seq_len: expected an integer from 1"),
    "no cache groups": (
        lambda e: e.manifest["kv_cache"].update(groups=[]),
        r"manifest\.kv_cache\.groups: expected one or more, found none",
    ),
    "a cache without a tensor": (
        lambda e: e.manifest["kv_cache"]["groups"][0]["caches"].append(
            {"layer": 1, "name": "key_cache", "dtype": "float32", "shape": [KV_HEADS, HEAD_DIM]}
        ),
        "expected 3 caches of full, as the manifest says, found 2",
    ),
    "a tensor of no group": (
        lambda e: e.manifest["kv_cache"]["groups"][0]["caches"].pop(),
        "tensor value_cache.0: expected the name of a cache of the manifest's groups",
    ),
    "a layer in two groups": (
        lambda e: e.manifest["kv_cache"]["groups"].append(e.manifest["kv_cache"]["groups"][0]),
        "groups: expected a layer in one group, found key_cache.0 twice",
    ),
    "a group whose layer attends by the tables of another": (
        lambda e: add_group(e) or e.instruction("PagedAttention")["attributes"].update(cache_group=1),
        "expected key_cache of PagedAttention to be a cache of cache group 1, found key_cache.0",
    ),
    "a group that keeps less than its layer reads": (
        lambda e: e.manifest["kv_cache"]["groups"][0].update(kind="window", window=8),
        "expected a layer of cache group 0 to have a window of at most 8, found 0",
    ),
    "block tables beyond any memory": (
        lambda e: (
            e.manifest["limits"].update(max_seq_len=2**29)
            or e.plan["symbols"].update(max_blocks_per_seq=2**29 // 16, num_seqs=4, num_seqs_plus_1=5)
            or e.plan["symbols"].update(num_decode_seqs=4, num_prefill_seqs=4, num_logits=4, num_tables=4)
        ),
        r"max_blocks_per_seq: expected 1 to 16777216, block tables of at most 2\^26 entries, found 33554432",
    ),
    "more blocks than a machine can hold": (
        lambda e: e.manifest["kv_cache"].update(num_blocks=2**26 + 1) or e.plan["symbols"].update(num_blocks=2**26 + 1),
        r"num_blocks: expected .* the manifest's num_blocks, at most 2\^26, found 67108865",
    ),
    "block size": (
        lambda e: e.manifest["kv_cache"].update(tokens_per_block=8),
        "blocks of max_seq_len|of tokens_per_block tokens",
    ),
    "no caches in a group": (
        lambda e: e.manifest["kv_cache"]["groups"][0].update(caches=[]),
        "expected one or more caches in full, found none",
    ),
    "a kind of another window": (
        lambda e: e.manifest["kv_cache"]["groups"][0].update(kind="window"),
        "expected a window if and only if the kind is window, found 0 in full",
    ),
    "caches of another type": (
        lambda e: [cache.update(dtype="float16") for cache in e.manifest["kv_cache"]["groups"][0]["caches"]],
        "expected what the manifest says that full keeps of tokens_per_block tokens under this name",
    ),
    "caches too large for any number": (
        lambda e: [cache.update(shape=[2**30 - 1] * 3) for cache in e.manifest["kv_cache"]["groups"][0]["caches"]],
        "expected what the manifest says that full keeps of tokens_per_block tokens under this name",
    ),
    "no blocks": (
        lambda e: e.manifest["kv_cache"].update(num_blocks=0),
        "kv_cache: expected layers with attention, and one or more blocks of one or more bytes",
    ),
    "an encoder with caches": (
        lambda e: setattr(e, "kind", "text_encoder"),
        "kv_cache: expected no groups and blocks of an encoder, found some",
    ),
    "features": (
        lambda e: change_module(e, lambda m: m["outputs"].append(FEATURES)),
        "expected a cache of features",
    ),
    "a head without features": (lambda e: setattr(e, "kind", "drafting_head"), "expected a drafting head to read rows"),
    "features by another name": (
        lambda e: (
            e.plan["tensors"].append(FEATURES | {"layout": "row_major", "kind": "cache", "offset": 0}),
            e.manifest["kv_cache"].update(bytes_per_block=1024 + 4 * 8 * TOKENS_PER_BLOCK),
            change_module(e, lambda m: m["outputs"][-1].update(name="key_cache.0")),
        ),
        "modules: expected key_cache.0 float32",
    ),
    "a step input that is no port": (
        lambda e: change_module(
            e, lambda m: m["inputs"].append({"name": "token_ids", "dtype": "int32", "shape": ["num_tokens"]})
        ),
        "expected token_ids .* to be an input of the plan",
    ),
    "two modules": (lambda e: e.manifest.update(modules=2 * e.modules()), "modules: expected one module, found 2"),
    "a module without outputs": (
        lambda e: change_module(e, lambda m: m.update(outputs=[])),
        "expected logits as the first output of the module",
    ),
    "a module without caches": (
        lambda e: change_module(e, lambda m: m.update(caches=[])),
        "expected the module to own the cache groups of the manifest",
    ),
    "an output of another size": (
        lambda e: change_module(e, lambda m: m["outputs"][0].update(shape=["num_logits", 8])),
        r"expected logits float32 \[num_logits, 8\] to be an output of the plan",
    ),
    "an input that the plan lacks": (
        lambda e: change_module(e, lambda m: m["inputs"].append(m["outputs"][0])),
        "expected logits .* to be an input of the plan",
    ),
    "larger blocks": (
        lambda e: e.manifest["kv_cache"].update(bytes_per_block=2048),
        "expected KV caches of 2048 bytes a block in all, as the manifest says, found 1024",
    ),
    "rank too high": (lambda e: e.manifest["mapping"].update(rank=1), r"mapping\.rank: expected one of 1 ranks"),
    "expert groups that do not divide the ranks": (
        lambda e: e.manifest["mapping"].update(moe_ep_size=2),
        r"mapping\.moe_ep_size: expected a divisor of tp_size = 1, found 2",
    ),
    "a last stage that receives nothing": (
        lambda e: last_stage(e),
        "inputs: expected values from the previous stage",
    ),
    "a first stage with logits": (
        lambda e: e.manifest["mapping"].update(pp_size=2),
        r"outputs\.logits: expected a row of floats of 32 bits for each token",
    ),
    "vocabulary": (lambda e: e.manifest["model"].update(vocab_size=71), "expected rows of vocab_size = 71"),
}


@pytest.mark.parametrize("case", MANIFESTS)
def test_refuses_manifests(tiny: TinyEngine, open_bytes, case: str) -> None:
    change, message = MANIFESTS[case]
    change(tiny)
    with pytest.raises(EngineError, match=message):
        open_bytes(tiny.to_bytes())


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_layers_of_several_groups_and_types_lie_at_one_place(tiny: TinyEngine, open_bytes, dtype: str) -> None:
    add_group(tiny, dtype)
    open_bytes(tiny.to_bytes())


def test_tokens_per_block_is_the_caches(tiny: TinyEngine, open_bytes) -> None:
    """If the plan's caches held fewer tokens per block than the manifest says, steps would write past each block."""
    tiny.manifest["kv_cache"].update(tokens_per_block=32, bytes_per_block=2 * 8 * 16 * 4)
    tiny.plan["symbols"]["max_blocks_per_seq"] = 2
    with pytest.raises(EngineError, match="expected what the manifest says that full keeps of tokens_per_block tokens"):
        open_bytes(tiny.to_bytes())
