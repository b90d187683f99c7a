"""The reader of GPU plans refuses values that must not reach a driver."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.documents import mutate
from tests.rounds import rounds
from tests.unit.csrc.reader_harness import verdicts
from tests.unit.csrc.tiny_engine import TinyEngine
from tests.unit.cuda.toy_engine import (
    ARENA_BYTES,
    INDEX,
    MAX_NUM_TOKENS,
    RECORD_BYTES,
    boxed,
    extent,
    make_toy_engine,
    make_toy_engine_of_adapters,
    pointer,
    to_bytes,
)
from trtllm_lite._core import Engine
from trtllm_lite.errors import EngineError

Change = Callable[[TinyEngine], object]
Json = dict[str, Any]


def tensor(name: str, /, **changes: Any) -> Change:
    return lambda engine: engine.tensor(name).update(changes)


def instruction(engine: TinyEngine, program: int, number: int) -> Json:
    found: Json = engine.plan["programs"][program]["instructions"][number]
    return found


def argument(number: int, value: Any) -> Change:
    """Changes an argument of the first decode program's first launch."""
    return lambda engine: instruction(engine, 0, 0)["args"].__setitem__(number, value)


def product(**changes: Any) -> Change:
    """Adds a product of the tokens' sums with themselves to the last program."""
    matmul = {
        "kind": "matmul",
        **{name: pointer("key_cache.0") for name in ("x", "weight")},
        **{"y": pointer("logits"), "bias": None, "residual": None},
        **{"rows": 1, "out_features": 2, "in_features": 2, "dtype": "bfloat16", "out_dtype": "float32"},
        "algorithms": [],
        **changes,
    }
    return lambda engine: engine.plan["programs"][-1]["instructions"].append(matmul)


CASES: dict[str, tuple[Change, str]] = {
    "arena overflow": (
        tensor("logits", offset=(ARENA_BYTES - 1) // 256 * 256),
        f"inside the arena of {ARENA_BYTES} bytes",
    ),
    "unaligned": (tensor("sums", offset=64), "multiple of 256"),
    "state overflow": (tensor("last_tokens", offset=RECORD_BYTES + 512), "inside the state of"),
    "sized by blocks": (tensor("x", shape=["num_blocks"]), "without num_blocks"),
    "unknown input": (tensor("past_lens", name="lens"), "name of a step input"),
    "input dtype": (tensor("past_lens", dtype="float32"), "int32 with the shape of the step input"),
    "input offset": (tensor("past_lens", offset=256), "expected offset 0"),
    "table stride": (tensor("block_tables", shape=["num_tables", 9]), "int32 with the shape of the step input"),
    "cache dtype": (tensor("key_cache.0", dtype="float32"), "what the manifest says that full keeps"),
    "cache size": (tensor("key_cache.0", shape=["num_blocks", 8]), "what the manifest says that full keeps"),
    "two of a name": (tensor("token_slots", name="token_ids"), "no other weight, cache, input or state"),
    "logits shape": (tensor("logits", shape=["num_logits", 49]), "outputs.logits"),
    "tokens dtype": (tensor("tokens", dtype="float32"), "outputs.tokens"),
    "logprobs shape": (tensor("logprobs", shape=["num_logits", 41]), "outputs.logprobs: expected rows of 42 words"),
    "logprobs kind": (tensor("logprobs", shape=["num_seqs", 42]), "outputs.logprobs"),
    "slots kind": (lambda e: e.plan["outputs"].update(sampling_slots=INDEX["x"]), "expected int32 in the state"),
    "slots shape": (tensor("sampling_slots", shape=["num_slots", 26]), "expected rows of 24 words and 4 for each edit"),
    "masks kind": (lambda e: e.plan["outputs"].update(token_masks=INDEX["x"]), "expected int32 in the state"),
    "masks shape": (tensor("token_masks", shape=["num_seqs", 1]), "a bit for each token, 2 words, found 1"),
    "tensor index": (argument(0, pointer("x") | {"tensor": len(INDEX)}), "integer from 0 to"),
    "pointer beyond": (argument(0, pointer("x", 97)), "inside tensor x of 96 bytes"),
    "pointer beyond for many tokens": (argument(0, pointer("x", extent("num_tokens", 97))), "inside tensor x"),
    "negative offset": (argument(0, pointer("x", -1)), "integer from 0"),
    "divisor zero": (argument(0, {"int": {"const": 0, "terms": [["num_tokens", 1, 0]]}}), "integer from 1"),
    "unknown symbol": (argument(0, {"int": {"const": 0, "terms": [["tokens", 1, 1]]}}), "one of num_tokens, num_seqs"),
    "int too large": (argument(0, {"int": 2**31}), "fits in 32 bits"),
    "float too large": (argument(0, {"float": 1e39}), "float32 can hold"),
    "map beyond": (argument(0, boxed(rows=MAX_NUM_TOKENS - 1)), "2944 bytes at offset 256 to lie inside tensor halves"),
    "map too large": (argument(0, boxed(rows=2**30 - 1, columns=2**30 - 8)), "to lie inside tensor halves"),
    "map offset": (argument(0, boxed(offset=264)), "multiples of 16 bytes, found 264"),
    "map offset that varies by step": (argument(0, boxed(offset=extent("num_tokens"))), "offset: expected an integer"),
    "map columns": (argument(0, boxed(rows=1, columns=60)), "multiples of 16 bytes, found 120"),
    "map box": (argument(0, boxed(box_columns=4)), "multiples of 16 bytes, found 8"),
    "map box too wide": (argument(0, boxed(box_columns=72)), "boxes are at most 128 bytes wide, found 144"),
    "map box too high": (argument(0, boxed(box_rows=257)), "box_rows: expected an integer from 1 to 256"),
    "map of an input": (argument(0, boxed("token_ids", offset=0)), "of an arena or weight tensor, found token_ids"),
    "map of a cache": (argument(0, boxed("key_cache.0", offset=0)), "of an arena or weight tensor, found key_cache.0"),
    "map of floats": (argument(0, boxed("logits", offset=0)), "of elements of one or two bytes, found logits"),
    "map of a tensor that is not there": (argument(0, boxed(tensor=len(INDEX))), "integer from 0 to"),
    "map with more keys": (argument(0, boxed() | {"offset": 0}), 'no member "offset"'),
    "too many maps": (lambda e: instruction(e, 0, 0)["args"].extend([boxed()] * 32), "at most 4096 bytes of arguments"),
    "too many arguments": (
        lambda e: instruction(e, 0, 0)["args"].extend([{"int": 0}] * 1100),
        "at most 4096 bytes of arguments",
    ),
    "grid too large": (lambda e: instruction(e, 0, 0).update(grid=[1, 65536, 1]), "a grid of at most"),
    "kernel index": (lambda e: instruction(e, 0, 0).update(kernel=5), "integer from 0 to 4"),
    "threads": (lambda e: e.plan["kernels"][0].update(threads=1025), "integer from 1 to 1024"),
    "no such cubin": (lambda e: e.plan["kernels"][0].update(cubins={"sm_90a": "none"}), "found an entry cubin.embed"),
    "kernel of another arch": (
        lambda e: e.plan["programs"][0].update(arch="sm_80"),
        "compiled for the program's architecture",
    ),
    "bounds of seqs": (lambda e: e.plan["symbols"].update(num_seqs=5), "symbols.num_seqs: expected 6"),
    "bounds of seqs plus 1": (lambda e: e.plan["symbols"].update(num_seqs_plus_1=8), "one more than num_seqs"),
    "no decode batches": (
        lambda e: e.plan["cuda"].update(decode_batches=[]),
        "ascending numbers",
    ),
    "decode batches in disorder": (
        lambda e: e.plan["cuda"].update(decode_batches=[1, 4, 4, 8]),
        "ascending numbers",
    ),
    "decode batches that end early": (
        lambda e: e.plan["cuda"].update(decode_batches=[1, 2]),
        "ascending numbers",
    ),
    "decode batches of nothing": (
        lambda e: e.plan["cuda"].update(decode_batches=[0, 8]),
        r"batches\[0\]: expected",
    ),
    "records with other numbers": (
        lambda e: e.plan["cuda"].update(slot_numbers=["temperature", "top_p"]),
        "found others: build the engine again",
    ),
    "bounds of slots": (lambda e: e.plan["symbols"].update(num_slots=5), "max_batch_size or more"),
    "product rows": (product(rows=extent("num_tokens", 26)), "expected at most 24 rows"),
    "product columns": (product(in_features=2**29, out_features=2**29), "to lie inside tensor key_cache.0"),
    "product dtype": (product(dtype="float32"), "expected tensor key_cache.0 to be float32|dtype bfloat16 or float16"),
    "product writes a cache": (product(y=pointer("key_cache.0"), out_dtype="bfloat16"), "writes to an arena tensor"),
    "product algorithm": (product(algorithms=[{"max_rows": 1, "algo": "0g" * 64}]), "128 hexadecimal digits"),
    "algorithms out of order": (
        product(algorithms=[{"max_rows": rows, "algo": "00" * 64} for rows in (2, 2)]),
        "algorithms whose max_rows ascend",
    ),
}


def adapted(**changes: Any) -> Change:
    """Changes the product that adapters may change."""
    return lambda engine: engine.plan["cuda"]["adapted"][0].update(changes)


OF_ADAPTERS: dict[str, tuple[Change, str]] = {
    "a of other rows": (tensor("adapter_a.0", shape=["num_loras", 16, 4]), r"adapted\[0\]: expected a \[num_loras"),
    "b of other rows": (adapted(widths=[5]), r"adapted\[0\]: expected a \[num_loras"),
    "a of no slots": (tensor("adapter_a.0", shape=[3, 8, 4]), r"int32 \[num_loras, integers"),
    "a of 32 bits": (tensor("adapter_a.0", dtype="float32"), "of 16 bits"),
    "a elsewhere": (adapted(a=INDEX["halves"]), "expected a and b of three axes"),
    "ranks of more parts": (tensor("adapter_ranks.0", shape=["num_loras", 2]), "expected ranks"),
    "arena of slots": (tensor("x", shape=["num_loras"]), "without num_blocks and num_loras"),
    "no slots": (lambda e: e.plan["symbols"].pop("num_loras"), "symbols.num_loras: expected 1 to 256"),
    "other tokens": (lambda e: e.plan["symbols"].update(num_adapter_tokens=3), "num_tokens if there are adapters"),
    "programs alone": (lambda e: e.plan["cuda"].update(adapted=[]), "expected a program without adapters"),
}


@pytest.mark.parametrize("case", [*CASES, *OF_ADAPTERS])
def test_refuses(tmp_path: Path, case: str) -> None:
    change, message = (CASES | OF_ADAPTERS)[case]
    engine = (make_toy_engine() if case in CASES else make_toy_engine_of_adapters()).copy()
    change(engine)
    path = tmp_path / "rank0.engine"
    path.write_bytes(to_bytes(engine))
    with pytest.raises(EngineError, match=message):
        Engine(str(path))


def test_accepts_the_toy_engine(tmp_path: Path) -> None:
    engine = make_toy_engine()
    product()(engine)
    instruction(engine, 0, 0)["args"].append(boxed())
    path = tmp_path / "rank0.engine"
    path.write_bytes(to_bytes(engine))
    assert len(json.loads(Engine(str(path)).plan)["programs"]) == 4


def test_mutated_plans_are_refused_or_harmless(harness: Path, tmp_path: Path) -> None:
    rng, toys, files = random.Random(0), (make_toy_engine(), make_toy_engine_of_adapters()), []
    for number in range(rounds(1000)):
        engine = rng.choice(toys).copy()
        product()(engine)
        instruction(engine, 0, 0)["args"].append(boxed())
        engine.fix_modules()
        mutate(rng, rng.choice((engine.plan, engine.plan, engine.manifest)))
        files.append(tmp_path / f"{number}.engine")
        files[-1].write_bytes(to_bytes(engine))
    accepted = verdicts(harness, files)  # fails if a sanitizer reports an error
    assert 0 < sum(accepted) < len(files) / 2
