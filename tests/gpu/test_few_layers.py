"""Two layers of the Llama-3.1-8B shape, step by step: logits and the contents of the KV cache, against float32."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from tests.gpu.paged import unpacked
from tests.models import save_tiny_model
from tests.tolerances import ROUNDED_TOLERANCES, assert_close
from trtllm_lite import _core, _testing
from trtllm_lite.builder import build_engine
from trtllm_lite.convert import convert_checkpoint
from trtllm_lite.engine.manifest import KvCache
from trtllm_lite.runtime.session.device import make_executor

SHAPE = Path(__file__).parents[2] / "configs" / "models" / "llama-3.1-8b.json"
LIMITS = {"max_batch_size": 72, "max_input_len": 512, "max_seq_len": 512, "max_num_tokens": 512}
NUM_BLOCKS = 120

# The number of new tokens of each sequence in each step; blocks hold 32.
SCHEDULE: tuple[dict[int, int], ...] = (
    {0: 32, 1: 1, 2: 65},  # prompts that fill a block, or end within the first or the third
    {0: 1, 1: 1, 3: 129},
    {1: 1, 3: 1, 2: 63, 4: 300},  # the next chunk of a prompt, up to the end of a block
    *(dict.fromkeys(range(size), 1) for size in (1, 2, 3, 4, *[5] * 33)),  # every sequence enters another block
    {0: 40, 1: 1, 4: 7},  # further prompts after generation
    {sequence: 1 + sequence % 4 for sequence in range(5, 71)},
    *[dict.fromkeys(range(71), 1)] * 3,
)


class Run:
    """Sequences of random tokens, run through the schedule by an executor."""

    def __init__(self, executor: _core.CudaExecutor, kv_cache: KvCache, vocab_size: int) -> None:
        self.executor, self.kv_cache, self.vocab_size = executor, kv_cache, vocab_size
        page, numbers = kv_cache.tokens_per_block, range(1 + max(max(step) for step in SCHEDULE))
        lengths = [sum(step.get(number, 0) for step in SCHEDULE) for number in numbers]
        generator = np.random.default_rng(0)
        self.tokens = [generator.integers(0, vocab_size, length, np.int32) for length in lengths]
        self.tables = np.zeros((len(lengths), -(-max(lengths) // page)), np.int32)
        free = generator.permutation(NUM_BLOCKS).astype(np.int32)
        for table, length in zip(self.tables, lengths, strict=True):
            num_blocks = -(-length // page)
            table[:num_blocks], free = free[:num_blocks], free[num_blocks:]
        self.free_blocks = free
        self.past_lens = np.zeros(len(lengths), np.int32)
        self.logits = [np.empty((length, vocab_size), np.float32) for length in lengths]

    def step(self, num_tokens: dict[int, int]) -> None:
        """Run one step with this many tokens of each sequence, and keep all their logits."""
        rows = np.array(list(num_tokens), np.int32)
        seq_lens = np.array(list(num_tokens.values()), np.int32)
        spans = [slice(self.past_lens[row], self.past_lens[row] + count) for row, count in num_tokens.items()]
        tokens = np.concatenate([self.tokens[row][span] for row, span in zip(rows, spans, strict=True)])
        wanted = np.arange(len(tokens), dtype=np.int32)
        logits = _core.step(self.executor, tokens, seq_lens, self.past_lens[rows], self.tables[rows], wanted)
        for row, span, own in zip(rows, spans, np.split(logits, seq_lens.cumsum()[:-1]), strict=True):
            self.logits[row][span] = own
        self.past_lens[rows] += seq_lens

    def blocks(self, numbers: np.ndarray) -> torch.Tensor:
        """[layers, keys or values, num_kv_heads, positions, head_dim] of the given blocks, in order."""
        geometry, keys = self.kv_cache, self.kv_cache.groups[0].caches[0]
        heads, head_dim = keys.shape
        shape = (geometry.num_layers, 2, heads, geometry.tokens_per_block, head_dim)
        data = torch.from_numpy(np.stack([_testing.read_block(self.executor, int(number)) for number in numbers]))
        parts = data.view(getattr(torch, keys.dtype)).view(-1, *shape[2:])
        blocks = unpacked(parts).view(len(numbers), *shape)
        return blocks.permute(1, 2, 3, 0, 4, 5).flatten(3, 4)


@dataclass
class Case:
    """A finished schedule, and the engine's model."""

    dtype: str
    run: Run
    reference: PreTrainedModel


@pytest.fixture(scope="module", params=["bfloat16", "float16"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    dtype = request.param
    directory = tmp_path_factory.mktemp(dtype)
    config = json.loads(SHAPE.read_text()) | {"num_hidden_layers": 2, "tie_word_embeddings": True}
    model = save_tiny_model("llama", directory / "model", dtype=getattr(torch, dtype), device="cuda", **config)
    convert_checkpoint(str(directory / "model"), directory / "checkpoint", dtype)
    manifest = build_engine(
        directory / "checkpoint", directory / "engine", **LIMITS, gather_context_logits=True, target="sm_90"
    )
    engine = _core.Engine(str(directory / "engine" / "rank0.engine"))
    executor = make_executor(_core, [engine], manifest, num_threads=0, num_blocks=NUM_BLOCKS)
    run = Run(executor, manifest.kv_cache, config["vocab_size"])
    for step in SCHEDULE:
        run.step(step)
    return Case(dtype, run, model.float())


def test_logits_and_cache_are_those_of_the_reference(case: Case) -> None:
    run = case.run
    for number, (tokens, logits, table) in enumerate(zip(run.tokens, run.logits, run.tables, strict=True)):
        with torch.inference_mode():
            expected = case.reference(torch.from_numpy(tokens).long()[None].to("cuda"), use_cache=True)
        what = f"sequence {number}"
        assert_close(logits, expected.logits[0].cpu().numpy(), case.dtype, f"logits of {what}", ROUNDED_TOLERANCES)
        found = run.blocks(table[: -(-len(tokens) // run.kv_cache.tokens_per_block)])
        assert not found[..., len(tokens) :, :].any(), f"{what}: written beyond its end"
        for layer, (pair, cache) in enumerate(zip(found, expected.past_key_values.layers, strict=True)):
            for name, own, other in zip(("keys", "values"), pair, (cache.keys[0], cache.values[0]), strict=True):
                ours, theirs = own[:, : len(tokens)].float().numpy(), other.cpu().numpy()
                assert_close(ours, theirs, case.dtype, f"{name} of layer {layer} of {what}", ROUNDED_TOLERANCES)


def test_nothing_is_written_to_blocks_of_nobody(case: Case) -> None:
    assert not case.run.blocks(case.run.free_blocks).any()
