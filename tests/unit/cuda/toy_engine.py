"""An engine of the toy model that fake_libcuda.cc knows: a token's successor is the sum of all tokens up to it."""

import copy
from typing import Any

from tests.unit.csrc.tiny_engine import METADATA, PYTHON_ONLY, TinyEngine, cache_group
from trtllm_lite.plugins.cuda.ranks import RANKS_WORDS
from trtllm_lite.request_fields.draws import NUMBERS

VOCAB, PAGE, MAX_BATCH_SIZE, MAX_SEQ_LEN, MAX_NUM_TOKENS = 50, 4, 6, 40, 24
NUM_BLOCKS = MAX_BATCH_SIZE * MAX_SEQ_LEN // PAGE
COLUMNS = MAX_SEQ_LEN // PAGE
NUM_SEQS, NUM_SLOTS = 8, 16  # the batch padded to a bucket, and room for finished requests
MAX_EDITS = 24  # too few for the longest sequences, so that some are sampled on the host
RECORD_WORDS = 24
LOGPROB_BYTES = -(-MAX_NUM_TOKENS * 42 * 4 // 256) * 256
HALVES_OFFSET = 768 + LOGPROB_BYTES + -(-MAX_NUM_TOKENS * VOCAB * 4 // 256) * 256
RECORD_BYTES = NUM_SLOTS * 4 * (RECORD_WORDS + 4 * MAX_EDITS)
LAST_TOKEN_BYTES = 256
MASK_WORDS = -(-VOCAB // 32)
POISON = 13

SYMBOLS = {
    "num_tokens": MAX_NUM_TOKENS,
    "num_seqs": NUM_SEQS,
    "num_seqs_plus_1": NUM_SEQS + 1,
    "num_decode_seqs": NUM_SEQS,
    "num_prefill_seqs": NUM_SEQS,
    "num_prefill_tokens": MAX_NUM_TOKENS,
    "num_tables": NUM_SEQS,
    "num_logits": MAX_NUM_TOKENS,
    "max_blocks_per_seq": COLUMNS,
    "num_blocks": NUM_BLOCKS,
    "num_slots": NUM_SLOTS,
    "num_sms": 192,
}
MANIFEST: dict[str, Any] = {
    **PYTHON_ONLY,
    "target": {"kind": "cuda", "archs": ["sm_90a"]},
    "model": {"vocab_size": VOCAB, "dtype": "float16"},
    "limits": {
        "max_batch_size": MAX_BATCH_SIZE,
        "max_input_len": 30,
        "max_seq_len": MAX_SEQ_LEN,
        "max_num_tokens": MAX_NUM_TOKENS,
        "max_draft_len": 0,
        "max_beam_width": MAX_BATCH_SIZE,
    },
    "kv_cache": {
        "tokens_per_block": PAGE,
        "num_blocks": NUM_BLOCKS,
        "bytes_per_block": 2 * PAGE * 2,
        "groups": [cache_group("full", (1, 1), "bfloat16")],
    },
}
# name, dtype, shape, kind, offset
TENSORS: list[tuple[str, str, list[int | str], str, int]] = [
    ("token_ids", "int32", ["num_tokens"], "input", 0),
    ("token_slots", "int32", ["num_tokens"], "input", 0),
    ("block_tables", "int32", ["num_tables", COLUMNS], "input", 0),
    ("cu_seqlens", "int32", ["num_seqs_plus_1"], "input", 0),
    ("past_lens", "int32", ["num_seqs"], "input", 0),
    ("logits_indices", "int32", ["num_logits"], "input", 0),
    ("sample_slots", "int32", ["num_logits"], "input", 0),
    ("sample_counter", "int32", ["num_logits"], "input", 0),
    ("sample_drafts", "int32", ["num_logits"], "input", 0),
    ("sample_masks", "int32", ["num_logits"], "input", 0),
    ("key_cache.0", "bfloat16", ["num_blocks", PAGE], "cache", 0),
    ("value_cache.0", "bfloat16", ["num_blocks", PAGE], "cache", 2 * PAGE),
    ("sampling_slots", "int32", ["num_slots", RECORD_WORDS + 4 * MAX_EDITS], "state", 0),
    ("last_tokens", "int32", ["num_slots"], "state", RECORD_BYTES),
    ("token_masks", "int32", ["num_seqs", MASK_WORDS], "state", RECORD_BYTES + LAST_TOKEN_BYTES),
    ("x", "int32", ["num_tokens"], "arena", 0),
    ("sums", "int32", ["num_tokens"], "arena", 256),
    ("tokens", "int32", ["num_logits"], "arena", 512),
    ("logprobs", "int32", ["num_logits", 42], "arena", 768),
    ("logits", "float32", ["num_logits", VOCAB], "arena", 768 + LOGPROB_BYTES),
    ("halves", "bfloat16", ["num_tokens", 64], "arena", HALVES_OFFSET),  # for the kernel probe, which no program runs
]
ARENA_BYTES = HALVES_OFFSET + MAX_NUM_TOKENS * 64 * 2
STATE_BYTES = RECORD_BYTES + LAST_TOKEN_BYTES + MAX_NUM_TOKENS * MASK_WORDS * 4
KERNELS = ("embed", "attend", "score", "sample", "probe")
INDEX = {name: number for number, (name, *_) in enumerate(TENSORS)}

Json = dict[str, Any]

KERNELS_OF_RANKS = ("embed_of_rank", "attend_of_rank", "add_up", "score_of_rank", "side_by_side")
KERNELS_OF_STAGES = ("pack_rows", "unpack_rows", "compare")
TOKEN_ROW_SIZE, BYTE_ROW_SIZE = 8, 5
ADAPT = "adapt"  # an additional kernel of engines with adapters
# Additional kernels of engines that take rows in place of tokens: rows of activations, and of bytes.
EMBED_ROWS, EMBED_BYTES = "embed_rows", "embed_bytes"
NUM_LORAS, MAX_LORA_RANK, ADAPTER_WIDTH = 3, 8, 4
ADAPTER_TENSORS: list[Json] = [
    {"name": name, "dtype": dtype, "shape": shape, "layout": "row_major", "kind": kind, "offset": offset}
    for name, dtype, shape, kind, offset in (
        ("adapter_tokens", "int32", ["num_adapter_tokens"], "input", 0),
        ("adapter_token_ends", "int32", ["num_loras"], "input", 0),
        ("adapter_a.0", "bfloat16", ["num_loras", MAX_LORA_RANK, ADAPTER_WIDTH], "adapter", 0),
        ("adapter_b.0", "bfloat16", ["num_loras", ADAPTER_WIDTH, MAX_LORA_RANK], "adapter", 256),
        ("adapter_ranks.0", "int32", ["num_loras", 1], "adapter", 512),
    )
]
SLOT_UNITS = 3  # units of 256 bytes that a slot needs


def extent(symbol: str, multiplier: int = 1) -> Json:
    """A symbol of the step, times ``multiplier``."""
    return {"const": 0, "terms": [[symbol, multiplier, 1]]}


def pointer(name: str, offset: int | Json = 0) -> Json:
    """The address of a tensor, plus ``offset`` bytes."""
    return {"tensor": INDEX[name], "offset": offset}


def launch(kernel: str, grid: int | Json, *arguments: Json) -> Json:
    """One launch."""
    number = KERNELS.index(kernel)
    return {"kind": "launch", "kernel": number, "grid": [grid, 1, 1], "args": list(arguments), "programmatic": False}


def compiled(kernel: str) -> Json:
    """A kernel whose machine code is its name."""
    return {"name": kernel, "cubins": {"sm_90a": kernel}, "threads": 32, "shared_bytes": 0}


def attend(rows: str, first: int | Json, stride: int | Json) -> Json:
    """Attention of ``rows`` sequences, whose inputs begin at byte ``first`` and block tables at byte ``stride``."""
    inputs = (pointer("cu_seqlens", first), pointer("past_lens", first), pointer("block_tables", stride))
    caches = (pointer("sums"), pointer("x"), pointer("key_cache.0"))
    numbers = ({"int": extent("max_blocks_per_seq")}, {"int": PAGE}, {"int": 2 * PAGE})
    return launch("attend", extent(rows), *caches, *inputs, *numbers)


def program(name: str, max_tokens: int, decode_only: bool) -> Json:
    """A whole step."""
    attention = [attend("num_decode_seqs", 0, 0)]
    if not decode_only:
        first = extent("num_decode_seqs", 4)
        attention.append(attend("num_prefill_seqs", first, extent("num_decode_seqs", 4 * COLUMNS)))
    ids = [pointer(name) for name in ("x", "token_ids", "token_slots", "last_tokens")]
    scores = [pointer(name) for name in ("logits", "sums", "x", "logits_indices")]
    inputs = ("sample_slots", "sample_counter", "sample_drafts", "sample_masks", "token_masks")
    rows = [pointer(name) for name in ("tokens", "logits", "logprobs", *inputs)]
    draws = [*rows, pointer("last_tokens"), pointer("sampling_slots"), {"int": MAX_EDITS}]
    instructions = [
        launch("embed", extent("num_tokens"), *ids),
        *attention,
        launch("score", extent("num_logits"), *scores, {"int": VOCAB}),
        launch("sample", extent("num_logits"), *draws, {"int": VOCAB}),
    ]
    return {
        "name": name,
        "arch": "sm_90a",
        "decode_only": decode_only,
        "max_tokens": max_tokens,
        "instructions": instructions,
        "adapters": False,
    }


def make_toy_engine(max_draft_len: int = 0) -> TinyEngine:
    """A valid engine whose parts may be changed."""
    num_seqs = NUM_SEQS * (1 + max_draft_len)
    symbols = dict.fromkeys(("num_seqs", "num_decode_seqs", "num_prefill_seqs", "num_tables"), num_seqs)
    plan: Json = {
        "symbols": SYMBOLS | symbols | {"num_seqs_plus_1": num_seqs + 1},
        "arena_bytes": ARENA_BYTES,
        "state_bytes": STATE_BYTES,
        "tensors": [
            {"name": name, "dtype": dtype, "shape": shape, "layout": "row_major", "kind": kind, "offset": offset}
            for name, dtype, shape, kind, offset in TENSORS
        ],
        "outputs": {name: INDEX[name] for name in ("logits", "tokens", "logprobs", "sampling_slots", "token_masks")},
        "inputs": {},
        "tallies": [],
        "shared_experts": [],
        "kernels": [compiled(name) for name in KERNELS],
        "programs": [
            *(program(f"decode_{size}", size, True) for size in (1, 2, 4)),
            program("mixed", MAX_NUM_TOKENS, False),
        ],
        "cuda": {
            "decode_batches": [*(size for size in (1, 2, 4, 8, 16) if size < num_seqs), num_seqs],
            "workspace_bytes": 0,
            "cublaslt_version": 0,
            "adapted": [],
            "collectives": [],
            "slot_numbers": list(NUMBERS),
        },
    }
    limits = MANIFEST["limits"] | {"max_draft_len": max_draft_len}
    return TinyEngine(MANIFEST | {"limits": limits}, plan, {}, dict(METADATA))


def make_toy_engine_of_adapters(max_draft_len: int = 0, stride: int = SLOT_UNITS) -> TinyEngine:
    """An engine with adapters, which add to each token's sum: a[0, 0] times the sum of the second row of b.

    Slots are ``stride`` units of 256 bytes apart.
    """
    toy = copy.deepcopy(make_toy_engine(max_draft_len))
    symbols = toy.plan["symbols"]
    symbols |= {"num_adapter_tokens": MAX_NUM_TOKENS, "num_adapter_logits": MAX_NUM_TOKENS, "num_loras": NUM_LORAS}
    symbols["adapter_stride"] = stride
    names = {tensor["name"]: len(toy.plan["tensors"]) + number for number, tensor in enumerate(ADAPTER_TENSORS)}
    toy.plan["tensors"] += ADAPTER_TENSORS
    slots = {"a": names["adapter_a.0"], "b": names["adapter_b.0"], "ranks": names["adapter_ranks.0"]}
    toy.plan["cuda"]["adapted"] = [{**slots, "widths": [ADAPTER_WIDTH]}]
    toy.plan["kernels"].append(compiled(ADAPT))
    for plain in list(toy.plan["programs"]):
        lists = [{"tensor": names[f"adapter_token{name}"], "offset": 0} for name in ("s", "_ends")]
        slots = [{"tensor": names[f"adapter_{name}.0"], "offset": 0} for name in ("a", "b", "ranks")]
        numbers = [{"int": stride}, {"int": MAX_LORA_RANK}, {"int": extent("num_adapter_tokens")}]
        grid = [extent("num_loras"), 1, 1]
        args = [pointer("sums"), *slots, *lists, *numbers]
        step = {"kind": "launch", "kernel": len(KERNELS), "grid": grid, "args": args, "programmatic": False}
        adapted = copy.deepcopy(plain) | {"name": f"lora_{plain['name']}", "adapters": True}
        adapted["instructions"].insert(-2, step)
        toy.plan["programs"].append(adapted)
    return toy


def make_toy_engine_with_rows(max_draft_len: int = 0, *, of_bytes: bool = False) -> TinyEngine:
    """An engine of whose tokens some may be rows, which begin with the token that they stand for.

    With ``of_bytes`` a token is made of the bytes of its row: it is the product of the row and (1, 8, 0, 0, 0).
    """
    toy = copy.deepcopy(make_toy_engine(max_draft_len))
    toy.plan["symbols"]["num_token_rows"] = MAX_NUM_TOKENS
    place = {"layout": "row_major", "kind": "input", "offset": 0}
    dtype, size = ("uint8", BYTE_ROW_SIZE) if of_bytes else ("bfloat16", TOKEN_ROW_SIZE)
    rows = {"name": "token_rows", "dtype": dtype, "shape": ["num_token_rows", size], **place}
    toy.plan["tensors"].append(rows)
    toy.plan["kernels"].append(compiled(EMBED_BYTES if of_bytes else EMBED_ROWS))
    for step in toy.plan["programs"]:
        embed = step["instructions"][0]
        embed["kernel"] = len(KERNELS)
        embed["args"].append({"tensor": len(toy.plan["tensors"]) - 1, "offset": 0})
    return toy


def make_toy_engine_of_groups() -> TinyEngine:
    """An engine with two cache groups, of which the model uses the second."""
    toy = copy.deepcopy(make_toy_engine())
    toy.plan["symbols"]["num_tables"] = 2 * NUM_SEQS
    groups = (("full", 1), ("full.1", 0))
    toy.manifest["kv_cache"]["groups"] = [cache_group(name, (1, 1), "bfloat16", layer) for name, layer in groups]
    caches = [tensor for tensor in toy.plan["tensors"] if tensor["kind"] == "cache"]
    toy.plan["tensors"] += [tensor | {"name": tensor["name"].replace(".0", ".1")} for tensor in caches]
    own = 4 * COLUMNS  # bytes of one table
    for step in toy.plan["programs"]:
        for instruction in step["instructions"]:
            if KERNELS[instruction["kernel"]] == "attend":
                tables, terms = instruction["args"][5], []
                if tables["offset"]:
                    terms = [[name, 2 * multiplier, divisor] for name, multiplier, divisor in tables["offset"]["terms"]]
                tables["offset"] = {"const": own, "terms": terms}
                instruction["args"][6] = {"int": 2 * COLUMNS}
    return toy


def make_toy_engine_with_features(max_draft_len: int = 0, *, borrows: bool = False) -> TinyEngine:
    """A toy engine that keeps its tokens as features, or, with ``borrows``, a head that looks them up there."""
    toy = copy.deepcopy(make_toy_engine(max_draft_len))
    number, shape = len(toy.plan["tensors"]), ["num_blocks", PAGE, 1]
    places = {"layout": "row_major", "kind": "cache", "offset": 0}
    toy.plan["tensors"].append({"name": "features", "dtype": "bfloat16", "shape": shape, **places})
    if borrows:
        toy.kind = "drafting_head"
    else:
        cache = toy.manifest["kv_cache"]
        toy.manifest["kv_cache"] = cache | {"bytes_per_block": cache["bytes_per_block"] + 2 * PAGE}
    for step in toy.plan["programs"]:
        for instruction in step["instructions"]:
            if KERNELS[instruction["kernel"]] == "attend":
                instruction["args"][2] = {"tensor": number, "offset": 0}
                instruction["args"][8] = {"int": PAGE}  # the distance of its blocks
    return toy


def make_toy_engine_of_ranks(count: int, rank: int) -> TinyEngine:
    """The toy engine of a rank of ``count``; each adds up the tokens of its positions, then they add up their sums."""
    toy = copy.deepcopy(make_toy_engine())
    toy.manifest["mapping"] = {"tp_size": count, "rank": rank, "pp_size": 1, "moe_ep_size": 1}
    table = _add_tensor(toy, "ranks", "int64", [RANKS_WORDS], "state", 8 * RANKS_WORDS)
    toy.plan["outputs"]["ranks"] = table["tensor"]
    toy.plan["kernels"] += [compiled(name) for name in KERNELS_OF_RANKS]
    for step in toy.plan["programs"]:
        embed, *attention, score, sample = step["instructions"]
        for number, instruction in enumerate((embed, *attention)):
            instruction["kernel"] = len(KERNELS) + min(number, 1)
            instruction["args"].append(table)
        add_up = _launch_of_ranks("add_up", 1, pointer("sums"), table, {"int": extent("num_tokens")})
        step["instructions"] = [embed, *attention, add_up, score, sample]
    return toy


def make_toy_engine_of_nccl(count: int, rank: int) -> TinyEngine:
    """The toy engine of ``rank`` of ``count`` ranks, which meet in NCCL and have a part of the logits each."""
    toy = make_toy_engine_of_ranks(count, rank)
    toy.manifest["allreduce_strategy"] = "NCCL"
    toy.plan["outputs"]["last_tokens"] = INDEX["last_tokens"]
    part = -(-VOCAB // count)
    shapes = {"part": part, "parts": count * part}
    place = {
        name: _add_tensor(toy, name, "float32", ["num_logits", width], "arena", 4 * MAX_NUM_TOKENS * width)
        for name, width in shapes.items()
    }
    table = {"tensor": toy.plan["outputs"]["ranks"], "offset": 0}
    sums, rows = pointer("sums"), extent("num_logits")
    for step in toy.plan["programs"]:
        *before, _, score, sample = step["instructions"]
        logits, *inputs, vocab = score["args"]
        step["instructions"] = [
            *before,
            collective("all_reduce", sums, sums, extent("num_tokens"), 1, "int32"),
            _launch_of_ranks("score_of_rank", rows, place["part"], *inputs, vocab, {"int": part}, table),
            collective("all_gather_rows", place["part"], place["parts"], rows, part, "float32"),
            _launch_of_ranks("side_by_side", rows, logits, place["parts"], {"int": part}, vocab),
            sample,
        ]
    return toy


def collective(op: str, x: Json, y: Json, rows: Json, features: int, dtype: str) -> Json:
    """A collective over ``rows`` of ``features`` values each."""
    widths = {"x_features": features, "y_features": features}
    return {"kind": "collective", "op": op, "x": x, "y": y, "rows": rows, **widths, "dtype": dtype}


def _launch_of_ranks(kernel: str, grid: int | Json, *arguments: Json) -> Json:
    number = len(KERNELS) + KERNELS_OF_RANKS.index(kernel)
    return {"kind": "launch", "kernel": number, "grid": [grid, 1, 1], "args": list(arguments), "programmatic": False}


def _add_tensor(toy: TinyEngine, name: str, dtype: str, shape: list[int | str], kind: str, num_bytes: int) -> Json:
    """Add a tensor to the plan; return its address."""
    offset = -(-toy.plan[f"{kind}_bytes"] // 256) * 256
    places = {"layout": "row_major", "kind": kind, "offset": offset}
    toy.plan["tensors"].append({"name": name, "dtype": dtype, "shape": shape, **places})
    toy.plan[f"{kind}_bytes"] = offset + num_bytes
    return {"tensor": len(toy.plan["tensors"]) - 1, "offset": 0}


def make_toy_engine_of_stages(pp_size: int, stage: int, tp_size: int = 1, part: int = 0) -> TinyEngine:
    """A toy engine whose stages cache all tokens and compute the same sums; the last one computes the next token."""
    toy = make_toy_engine_of_ranks(tp_size, part)
    rank = stage * tp_size + part
    toy.manifest["mapping"] = {"tp_size": tp_size, "rank": rank, "pp_size": pp_size, "moe_ep_size": 1}
    first = len(toy.plan["kernels"])
    toy.plan["kernels"] += [compiled(name) for name in KERNELS_OF_STAGES]
    given = _add_tensor(toy, "given", "int32", ["num_tokens"], "arena", 4 * MAX_NUM_TOKENS)
    received = _add_tensor(toy, "received", "bfloat16", ["num_tokens", 64], "arena", 128 * MAX_NUM_TOKENS)

    def step(kernel: str, *args: Json) -> Json:
        number = first + KERNELS_OF_STAGES.index(kernel)
        grid = [extent("num_tokens"), 1, 1]
        return {"kind": "launch", "kernel": number, "grid": grid, "args": list(args), "programmatic": False}

    for program in toy.plan["programs"]:
        embed, *middle, score, sample = program["instructions"]
        begin, end = [embed], [score, sample]
        if stage > 0:
            begin = [step("unpack_rows", pointer("x"), given, received)]
            middle.append(step("compare", pointer("sums"), given))
        if stage < pp_size - 1:
            end = [step("pack_rows", pointer("halves"), pointer("x"), pointer("sums"))]
        program["instructions"] = [*begin, *middle, *end]
    if stage > 0:
        toy.plan["inputs"] = {"rows": received["tensor"]}
    if stage < pp_size - 1:
        toy.plan["outputs"] = {"rows": INDEX["halves"], "ranks": toy.plan["outputs"]["ranks"]}
    return toy


def to_bytes(engine: TinyEngine) -> bytes:
    """The file, with the kernels' names as machine code."""
    more = (ADAPT, EMBED_ROWS, EMBED_BYTES, *KERNELS_OF_RANKS, *KERNELS_OF_STAGES)
    others = [name for name in more if repr(name) in str(engine.plan)]
    cubins = {f"cubin.{name}": name.encode() for name in (*KERNELS, *others)}
    return engine.to_bytes({**engine.documents(), **cubins})


def boxed(name: str = "halves", **changes: int) -> Json:
    """A tensor map of all rows of a tensor but the first two."""
    where = {"tensor": INDEX[name], "offset": 256, "rows": MAX_NUM_TOKENS - 2, "columns": 64}
    return {"tensor_map": {**where, "box_rows": 8, "box_columns": 64, **changes}}


def successor(tokens: list[int]) -> int:
    """The model's next token after ``tokens``."""
    return sum(tokens) % VOCAB
