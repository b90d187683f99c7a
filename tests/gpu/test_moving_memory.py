"""Memory of the KV cache that adapters borrow while requests run on the card: the same tokens, and nothing is lost."""

import json
import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trtllm_lite import _core
from trtllm_lite._core import sampling
from trtllm_lite.builder import build_engine, checkpoint_of_shape
from trtllm_lite.convert import open_model_config
from trtllm_lite.runtime.lora.peft import Pair
from trtllm_lite.runtime.lora.slot_memory import SlotMemory
from trtllm_lite.runtime.session.device import make_executor

SHAPE = Path(__file__).parents[2] / "configs" / "models" / "llama-3.1-8b.json"
LIMITS = {"max_batch_size": 8, "max_input_len": 512, "max_seq_len": 1024, "max_num_tokens": 512}
RANK, NUM_LORAS, NUM_TOKENS, NUM_BLOCKS = 64, 3, 40, 600


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """An engine of four layers, whose slots take more than a slab each, and its manifest."""
    path = tmp_path_factory.mktemp("moving")
    config = path / "config.json"
    config.write_text(json.dumps(json.loads(SHAPE.read_text()) | {"num_hidden_layers": 4}))
    model = open_model_config(config)
    checkpoint = checkpoint_of_shape(model.config, model.network)
    return path / "engine", build_engine(
        checkpoint, path / "engine", **LIMITS, target="sm_90", max_lora_rank=RANK, strip_plan=True
    )


def opened(made: tuple[Path, Any], adapter_bytes: int | None) -> tuple[Any, Any, Any]:
    """The engine with all memory for adapters, or with what they borrow: (engine, executor, loop)."""
    engine = _core.Engine(str(made[0] / "rank0.engine"))
    where = {"num_threads": 0, "num_blocks": NUM_BLOCKS, "num_loras": NUM_LORAS, "adapter_bytes": adapter_bytes}
    executor = make_executor(_core, [engine], made[1], **where)
    # Without prefix reuse, a request's steps are the same each time, and so are their roundings.
    return engine, executor, _core.EventLoop(executor, **LIMITS)


def adapter_of(engine: Any, seed: int) -> Any:
    generator, pairs = np.random.default_rng(seed), {}
    for number, (num_in, num_out) in enumerate(_core.adapter_shapes(engine)[1]):
        a, b = (generator.standard_normal(shape, np.float32) for shape in ((RANK, num_in), (num_out, RANK)))
        pairs[number] = Pair(str(number), a * np.float32(0.02), b * np.float32(0.02), 1.0)
    return _core.Adapter(engine, pairs, bytes([seed]))


def continued(loop: Any, seed: int, adapter: Any = None) -> list[int]:
    """The tokens of a random prompt, alone in each step."""
    params = sampling.SamplingParams()
    params.temperature, params.max_tokens, params.ignore_eos = 0.0, NUM_TOKENS, True
    prompt = np.random.default_rng(seed).integers(0, 1000, 300 + seed, np.int32)
    loop.submit(prompt, params, adapter=adapter)
    tokens: list[int] = []
    while True:
        polled = loop.poll(60.0)
        assert polled is not None
        assert any(polled) or loop.short_of_blocks
        for event in polled[0]:
            tokens += event.tokens
        if polled[1]:
            assert polled[1][0].reason.name == "LENGTH", polled[1][0].message
            return tokens


def test_requests_go_on_while_memory_moves(made: tuple[Path, Any]) -> None:
    engine, executor, loop = opened(made, None)
    for slot in range(NUM_LORAS):
        executor.place_adapter(adapter_of(engine, slot), slot=slot)
    expected = [continued(loop, seed) for seed in range(6)]
    adapters = [adapter_of(engine, slot) for slot in range(NUM_LORAS)]
    for slot, adapter in enumerate(adapters):
        executor.place_adapter(adapter, slot=slot)
    adapted = [continued(loop, 7, adapter) for adapter in adapters]
    assert len({tuple(tokens) for tokens in adapted}) == NUM_LORAS
    loop.shut_down()
    del loop, executor

    engine, executor, loop = opened(made, 0)
    cache, slots = executor.memory["kv_cache"], SlotMemory(executor, loop)
    adapters = [adapter_of(engine, slot) for slot in range(NUM_LORAS)]
    stopped, failures, moves = threading.Event(), [], []

    def move() -> None:
        choose = random.Random(5)
        try:
            while not stopped.is_set():
                slot = choose.randrange(1, NUM_LORAS)
                slots.place(adapters[slot], slot)
                moves.append(executor.memory["adapters"])
                slots.release(choose.randrange(1, NUM_LORAS))
        except BaseException as failure:  # noqa: BLE001 - the test reports it
            failures.append(failure)

    slots.place(adapters[0], 0)
    mover = threading.Thread(target=move)
    mover.start()
    for _ in range(5):
        for seed in range(6):
            assert continued(loop, seed) == expected[seed]
        assert continued(loop, 7, adapters[0]) == adapted[0]
    stopped.set()
    mover.join()
    assert not failures
    assert len(moves) > 10
    for slot, adapter in enumerate(adapters):
        slots.place(adapter, slot)
        assert continued(loop, 7, adapter) == adapted[slot]
    assert executor.memory["adapters"] + executor.memory["kv_cache"] == cache
    for slot in range(NUM_LORAS):
        slots.release(slot)
    assert executor.memory["kv_cache"] == cache
    loop.shut_down()
