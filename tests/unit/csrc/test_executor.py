"""CpuExecutor: what a step refuses, that its result depends neither on batch nor on chunks, and what it reserves."""

import threading
from pathlib import Path

import numpy as np
import pytest

from tests.tolerances import assert_close
from tests.unit.csrc.tiny_engine import HIDDEN, MAX_NUM_TOKENS, NUM_BLOCKS, VOCAB, TinyEngine
from trtllm_lite import _core, _testing
from trtllm_lite._core import CpuExecutor, Engine
from trtllm_lite.errors import ArgumentError, LimitError

TOKENS = np.random.default_rng(5).integers(0, VOCAB, 40).astype(np.int32)


def i32(*values: int) -> np.ndarray:
    """An int32 array."""
    return np.array(values, np.int32)


def run_alone(executor: CpuExecutor, tokens: np.ndarray, chunks: list[int], blocks: list[int]) -> np.ndarray:
    """Logits after the last of ``tokens``, which are fed in chunks of the given sizes."""
    past = 0
    for size in chunks:
        part, last = tokens[past : past + size], i32(size - 1)
        logits = _core.step(executor, part, i32(size), i32(past), np.array([blocks], np.int32), last)
        past += size
    assert past == len(tokens)
    return logits


def valid_step() -> dict[str, np.ndarray]:
    """Two sequences: 3 new tokens after 14, and 1 after none."""
    return {
        "token_ids": i32(1, 2, 3, 4),
        "seq_lens": i32(3, 1),
        "past_lens": i32(14, 0),
        "block_tables": np.array([[0, 1], [5, 99]], np.int32),
        "logits_indices": i32(2, 3),
    }


def test_shape_and_freshness(executor: CpuExecutor) -> None:
    first = _core.step(executor, **valid_step())
    assert first.shape == (2, VOCAB)
    assert first.dtype == np.float32
    copy = first.copy()
    _core.step(executor, **valid_step() | {"token_ids": i32(9, 9, 9, 9)})
    np.testing.assert_array_equal(first, copy)


@pytest.mark.parametrize("chunks", [[40 - 8, 8], [1] * 40, [15, 1, 16, 8], [7, 13, 20]])
def test_chunks_do_not_matter(executor: CpuExecutor, chunks: list[int]) -> None:
    whole = run_alone(executor, TOKENS, [32, 8], [0, 1, 2])
    np.testing.assert_array_equal(run_alone(executor, TOKENS, chunks, [4, 3, 5]), whole)


def test_batch_does_not_matter(executor: CpuExecutor) -> None:
    alone = [run_alone(executor, TOKENS[:20], [20], [0, 1]), run_alone(executor, TOKENS[20:23], [2, 1], [2])]
    _core.step(executor, TOKENS[20:22], i32(2), i32(0), np.array([[5]], np.int32), i32())
    tokens = np.concatenate([TOKENS[:20], TOKENS[22:23]])
    tables = np.array([[0, 1], [5, -7]], np.int32)
    together = _core.step(executor, tokens, i32(20, 1), i32(0, 2), tables, i32(19, 20))
    np.testing.assert_array_equal(together, np.concatenate(alone))


def test_no_logits_wanted(executor: CpuExecutor) -> None:
    step = valid_step() | {"logits_indices": i32()}
    assert _core.step(executor, **step).shape == (0, VOCAB)


@pytest.mark.parametrize("isa", _testing.supported_isas())
def test_instruction_sets_agree(tiny: TinyEngine, tmp_path, isa: str) -> None:
    path = tmp_path / "rank0.engine"
    path.write_bytes(tiny.to_bytes())
    engine = Engine(str(path))
    results = [run_alone(CpuExecutor(engine, isa=name), TOKENS, [32, 8], [0, 1, 2]) for name in (isa, "portable")]
    np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-5)


REFUSED = {
    "no tokens": ({"token_ids": i32()}, "number of tokens: expected 1 to 32, found 0"),
    "too many tokens": ({"token_ids": np.zeros(33, np.int32)}, "number of tokens: .* found 33; .*--max_num_tokens"),
    "too many sequences": (
        {"seq_lens": i32(1, 1, 1), "past_lens": i32(0, 0, 0)},
        "number of sequences: expected 1 to 2, found 3; .*--max_batch_size",
    ),
    "past_lens size": ({"past_lens": i32(0)}, "size of past_lens: expected 2, found 1"),
    "table rows": ({"block_tables": np.zeros((3, 2), np.int32)}, "size of block_tables: expected 4, found 6"),
    "table columns": ({"block_tables": np.zeros((2, 4), np.int32)}, "columns of block_tables: expected 1 to 3"),
    "no columns": ({"block_tables": np.zeros((2, 0), np.int32)}, "columns of block_tables: expected 1 to 3, found 0"),
    "empty sequence": ({"seq_lens": i32(4, 0)}, r"seq_lens\[1\]: expected 1 to 0, found 0"),
    "sum too small": ({"seq_lens": i32(1, 1)}, "sum of seq_lens: expected 4, the number of token_ids, found 2"),
    "sum too large": ({"seq_lens": i32(4, 1)}, r"seq_lens\[1\]"),
    "huge length": ({"seq_lens": i32(2**31 - 1, 2**31 - 1)}, r"seq_lens\[0\]: expected 1 to 4, found 2147483647"),
    "negative past": ({"past_lens": i32(-1, 0)}, r"past_lens\[0\]: expected 0 to 48, found -1"),
    "too long": ({"past_lens": i32(46, 0)}, "length of sequence 0: expected 1 to 48, found 49; .*--max_seq_len"),
    "huge past": ({"past_lens": i32(2**31 - 1, 0)}, r"past_lens\[0\]"),
    "too few blocks": (
        {"past_lens": i32(30, 0)},
        "columns of block_tables: expected 3 or more for sequence 0, found 2",
    ),
    "unknown block": (
        {"block_tables": np.array([[0, 6], [5, 0]], np.int32)},
        r"block_tables\[0\]\[1\]: .*0 to 5, found 6",
    ),
    "negative block": ({"block_tables": np.array([[-1, 1], [5, 0]], np.int32)}, r"block_tables\[0\]\[0\]"),
    "written twice": ({"block_tables": np.array([[0, 5], [5, 0]], np.int32)}, "block .*used once, found 5"),
    "read and written": ({"block_tables": np.array([[0, 1], [0, 2]], np.int32)}, "block .*used once, found 0"),
    "token beyond the vocabulary": ({"token_ids": i32(1, VOCAB, 3, 4)}, r"token_ids\[1\]: expected 0 to 69, found 70"),
    "negative token": ({"token_ids": i32(1, 2, -3, 4)}, r"token_ids\[2\]: expected 0 to 69, found -3"),
    "row beyond the tokens": ({"logits_indices": i32(4)}, r"logits_indices\[0\]: expected 0 to 3, found 4"),
    "negative row": ({"logits_indices": i32(0, -1)}, r"logits_indices\[1\]"),
    "too many rows": ({"logits_indices": i32(0, 1, 2)}, "number of logits_indices: expected 0 to 2, found 3"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses(executor: CpuExecutor, case: str) -> None:
    change, message = REFUSED[case]
    with pytest.raises(LimitError, match=message):
        _core.step(executor, **valid_step() | change)
    _core.step(executor, **valid_step())


def test_a_prefix_may_be_shared(executor: CpuExecutor) -> None:
    """Two sequences that read the same full block and write their own."""
    _core.step(executor, TOKENS[:16], i32(16), i32(0), i32(0)[None], i32())
    tables = np.array([[0, 1], [0, 2]], np.int32)
    logits = _core.step(executor, i32(7, 7), i32(1, 1), i32(16, 16), tables, i32(0, 1))
    np.testing.assert_array_equal(logits[0], logits[1])


@pytest.mark.parametrize("wrong", [np.int64, np.float32, np.uint32])
def test_refuses_other_dtypes(executor: CpuExecutor, wrong: type) -> None:
    with pytest.raises(TypeError):
        _core.step(executor, **valid_step() | {"token_ids": np.array([1, 2, 3, 4], wrong)})


def test_threads_take_turns(executor: CpuExecutor) -> None:
    """Concurrent steps on different sequences give the results of consecutive steps."""
    expected = {block: run_alone(executor, TOKENS[block : block + 10], [10], [block]) for block in range(NUM_BLOCKS)}
    wrong = []

    def work(block: int) -> None:
        for _ in range(50):
            logits = run_alone(executor, TOKENS[block : block + 10], [4, 6], [block])
            if not np.array_equal(logits, expected[block]):
                wrong.append(block)

    threads = [threading.Thread(target=work, args=(block,)) for block in range(NUM_BLOCKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_outputs_are_those_of_the_last_step(tiny: TinyEngine, tmp_path) -> None:
    names = [tensor["name"] for tensor in tiny.plan["tensors"]]
    tiny.plan["outputs"] |= {"every row": names.index("n3"), "rows of logits": names.index("last")}
    path = tmp_path / "rank0.engine"
    path.write_bytes(tiny.to_bytes())
    executor = CpuExecutor(Engine(str(path)))

    def output(name: str, *rows: int) -> np.ndarray:
        return executor.output(name, *rows).view(np.float32)

    assert output("every row").shape == (0, HIDDEN)
    logits = _core.step(executor, **valid_step())
    rows = output("every row")
    assert rows.shape == (4, HIDDEN)
    np.testing.assert_array_equal(output("every row", 1, 3), rows[1:3])
    np.testing.assert_array_equal(output("rows of logits"), rows[valid_step()["logits_indices"]])
    np.testing.assert_array_equal(output("logits"), logits)
    _core.step(executor, **valid_step() | {"token_ids": i32(9, 9, 9, 9), "logits_indices": i32()})
    assert output("rows of logits").shape == (0, HIDDEN)
    assert not np.array_equal(output("every row"), rows)
    with pytest.raises(ArgumentError, match="expected one that the engine's plan has, found n3"):
        output("n3")
    with pytest.raises(LimitError, match="expected rows among the 4 of the last step, found 3 to 5"):
        output("every row", 3, 5)


def test_options_and_memory(tiny: TinyEngine, tmp_path) -> None:
    path = tmp_path / "rank0.engine"
    path.write_bytes(tiny.to_bytes())
    engine = Engine(str(path))
    executor = CpuExecutor(engine, num_threads=3, num_blocks=20, isa="portable")
    assert (executor.num_threads, executor.isa) == (3, "portable")
    assert executor.memory["weights"] == engine.weight_bytes == sum(array.nbytes for array in tiny.weights.values())
    assert executor.memory["kv_cache"] == 20 * tiny.manifest["kv_cache"]["bytes_per_block"]
    assert executor.memory["workspace"] >= tiny.plan["arena_bytes"]
    step = valid_step() | {"block_tables": np.array([[18, 19], [5, 0]], np.int32)}
    again = CpuExecutor(engine, num_blocks=20, isa="portable")
    np.testing.assert_array_equal(_core.step(executor, **step), _core.step(again, **step))


def test_refuses_absurd_options(tiny: TinyEngine, tmp_path) -> None:
    path = tmp_path / "rank0.engine"
    path.write_bytes(tiny.to_bytes())
    engine = Engine(str(path))
    with pytest.raises(LimitError, match="num_blocks: expected 1 to"):
        CpuExecutor(engine, num_blocks=-1)
    with pytest.raises(ArgumentError, match="num_threads: expected 1 to 1024"):
        CpuExecutor(engine, num_threads=-2)
    with pytest.raises(ArgumentError, match="isa: expected auto or one that this machine supports"):
        CpuExecutor(engine, isa="sse9")


def test_engine_outlives_its_name(tiny: TinyEngine, tmp_path) -> None:
    """The executor keeps the mapping alive, also when the file is gone."""
    path = tmp_path / "rank0.engine"
    path.write_bytes(tiny.to_bytes())
    executor = CpuExecutor(Engine(str(path)))
    path.unlink()
    assert np.isfinite(_core.step(executor, **valid_step())).all()


def test_features_in_another_order(tiny: TinyEngine, tmp_path: Path) -> None:
    """With its columns reordered alike, the LM head gives the same logits up to the order of summation."""
    path = tmp_path / "plain.engine"
    path.write_bytes(tiny.to_bytes())
    expected = _core.step(CpuExecutor(Engine(str(path))), **valid_step())
    order = np.random.default_rng(0).permutation(HIDDEN)
    tiny.weights["head"] = np.ascontiguousarray(tiny.weights["embedding"][:, order])
    tiny.plan["tensors"].append(tiny.tensor("embedding") | {"name": "head"})
    tiny.instructions()[-1]["operands"]["weight"] = len(tiny.plan["tensors"]) - 1
    tiny.reorder_last_rows(order.tolist())
    path = tmp_path / "reordered.engine"
    path.write_bytes(tiny.to_bytes())
    assert_close(_core.step(CpuExecutor(Engine(str(path))), **valid_step()), expected)


def test_a_collective_of_one_rank_hands_its_operand_on(tiny: TinyEngine, tmp_path: Path) -> None:
    path = tmp_path / "plain.engine"
    path.write_bytes(tiny.to_bytes())
    expected = _core.step(CpuExecutor(Engine(str(path))), **valid_step())
    tensors, index = tiny.plan["tensors"], len(tiny.plan["tensors"])
    tensors.append(tiny.tensor("n3") | {"name": "reduced", "offset": tiny.plan["arena_bytes"]})
    tiny.plan["arena_bytes"] += MAX_NUM_TOKENS * HIDDEN * 4
    source = {"tensor": tensors.index(tiny.tensor("n3")), "offset": 0}
    reduce = {"kind": "collective", "op": "all_reduce", "rows": MAX_NUM_TOKENS, "dtype": "float32"}
    reduce |= {"x_features": HIDDEN, "y_features": HIDDEN}
    gather = tiny.instruction("GatherRows")
    gather["operands"]["x"] = index
    place = tiny.instructions().index(gather)
    tiny.instructions().insert(place, reduce | {"x": source, "y": {"tensor": index, "offset": 0}})
    path = tmp_path / "reduced.engine"
    path.write_bytes(tiny.to_bytes())
    np.testing.assert_array_equal(_core.step(CpuExecutor(Engine(str(path))), **valid_step()), expected)
