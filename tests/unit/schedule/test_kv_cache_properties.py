"""KvCacheManager against a model of the memory it manages, over any sequence of operations that hypothesis finds.

The model holds what each block contains, and what each sequence must read. So a block that is shared, evicted, copied
or swapped wrongly shows as a sequence that reads something else.
"""

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule

from tests.rounds import rounds
from trtllm_lite._testing import KvCacheBookkeeping

Copies = list[tuple[str, int, int]] | None
# A small vocabulary makes sequences begin alike by chance.
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=14)
STEPS_IN_FLIGHT = 2


@dataclass
class Sequence:
    """The model's state of one sequence."""

    number: int
    salt: str
    tokens: list[int]
    on_host: bool = False
    open: bool = True


class KvCacheMachine(RuleBasedStateMachine):
    """A manager, its memory, and the sequences in it."""

    sequences = Bundle("sequences")

    @initialize(
        num_blocks=st.integers(1, 12),
        num_host_blocks=st.integers(0, 6),
        tokens_per_block=st.integers(1, 4),
        enable_block_reuse=st.booleans(),
    )
    def start(self, num_blocks: int, num_host_blocks: int, tokens_per_block: int, enable_block_reuse: bool) -> None:
        self.cache = KvCacheBookkeeping(
            num_blocks=num_blocks,
            num_host_blocks=num_host_blocks,
            tokens_per_block=tokens_per_block,
            enable_block_reuse=enable_block_reuse,
        )
        self.num_blocks, self.num_host_blocks, self.tokens_per_block = num_blocks, num_host_blocks, tokens_per_block
        self.memory = {
            "device": [[None] * tokens_per_block for _ in range(num_blocks)],
            "host": [[None] * tokens_per_block for _ in range(num_host_blocks)],
        }
        self.live: dict[int, Sequence] = {}
        # The device blocks that each step in flight uses.
        self.in_flight: list[set[int]] = []

    # ---- operations

    @rule(target=sequences, tokens=TOKENS, salt=st.sampled_from(["", "tenant"]))
    def open(self, tokens: list[int], salt: str) -> Sequence:
        number, copies = self.cache.open(tokens, salt)
        sequence = Sequence(number, salt, list(tokens))
        self.live[sequence.number] = sequence
        self.check_new_blocks(self.written(copies))
        self.carry_out(copies)
        if copies:
            self.launch(set(self.cache.blocks(number)))
        assert self.cache.length(sequence.number) < len(tokens), "the last token must be computed"
        return sequence

    @rule(target=sequences, parent=sequences)
    def fork(self, parent: Sequence) -> Sequence:
        if not parent.open or parent.on_host:
            return parent
        sequence = Sequence(self.cache.fork(parent.number), parent.salt, list(parent.tokens))
        self.live[sequence.number] = sequence
        return sequence

    @rule(sequence=sequences, more=TOKENS, count=st.integers(1, 14))
    def write(self, sequence: Sequence, more: list[int], count: int) -> None:
        if not sequence.open or sequence.on_host:
            return
        begin = self.cache.length(sequence.number)
        if begin == len(sequence.tokens):
            sequence.tokens += more
            self.cache.append(sequence.number, more)
        count = min(count, len(sequence.tokens) - begin)
        before = self.cache.blocks(sequence.number)
        copies = self.cache.write(sequence.number, count)
        if copies is None:
            assert self.cache.blocks(sequence.number) == before
            assert self.cache.length(sequence.number) == begin
            return
        blocks = self.cache.blocks(sequence.number)
        self.check_new_blocks(set(blocks) - set(before))
        self.carry_out(copies)
        for position in range(begin, begin + count):
            block = blocks[position // self.tokens_per_block]
            assert self.cache.refcount(block) == 1, "a block is written that other sequences hold"
            self.memory["device"][block][position % self.tokens_per_block] = sequence.tokens[position]
        self.launch(set(blocks) | {source for _, source, _ in copies})

    @rule(sequence=sequences)
    def swap_out(self, sequence: Sequence) -> None:
        if not sequence.open or sequence.on_host:
            return
        before = self.cache.blocks(sequence.number)
        copies = self.cache.swap_out(sequence.number)
        if copies is None:
            assert self.cache.blocks(sequence.number) == before
            return
        self.carry_out(copies)
        self.launch({source for _, source, _ in copies})
        sequence.on_host = True

    @rule(sequence=sequences)
    def swap_in(self, sequence: Sequence) -> None:
        if not sequence.open or not sequence.on_host:
            return
        copies = self.cache.swap_in(sequence.number)
        if copies is None:
            return
        self.check_new_blocks(self.written(copies))
        self.carry_out(copies)
        self.launch(set(self.cache.blocks(sequence.number)))
        sequence.on_host = False

    @rule(sequence=consumes(sequences))
    def close(self, sequence: Sequence) -> None:
        if sequence.open:
            self.cache.close(sequence.number)
            del self.live[sequence.number]
            sequence.open = False

    @rule(sequence=sequences)
    def forget(self, sequence: Sequence) -> None:
        if sequence.open:
            self.cache.forget(sequence.number)

    @precondition(lambda self: getattr(self, "in_flight", None))
    @rule()
    def end_step(self) -> None:
        self.cache.end_step()
        self.in_flight.pop(0)

    # ---- the model

    def carry_out(self, copies: Copies) -> None:
        for kind, source, target in copies or []:
            origin, destination = kind.split("_to_")
            self.memory[destination][target] = list(self.memory[origin][source])

    def written(self, copies: Copies) -> set[int]:
        """The device blocks that copies write."""
        return {target for kind, _, target in copies or [] if kind.endswith("_to_device")}

    def launch(self, touched: set[int]) -> None:
        self.in_flight.append(touched)
        if len(self.in_flight) > STEPS_IN_FLIGHT:
            self.end_step()

    def check_new_blocks(self, blocks: set[int]) -> None:
        """Check that no step in flight uses blocks that were just handed out."""
        for touched in self.in_flight:
            assert not blocks & touched, "a block is handed out that a step in flight still uses"

    @invariant()
    def every_block_is_where_it_belongs(self) -> None:
        if not hasattr(self, "cache"):
            return
        self.cache.check_integrity()
        holders: Counter[int] = Counter()
        for sequence in self.live.values():
            blocks = self.cache.blocks(sequence.number)
            assert len(set(blocks)) == len(blocks)
            if not sequence.on_host:
                holders.update(blocks)
        for block in range(self.num_blocks):
            assert self.cache.refcount(block) == holders[block]

    @invariant()
    def every_sequence_reads_its_own_tokens(self) -> None:
        if not hasattr(self, "cache"):
            return
        for sequence in self.live.values():
            memory = self.memory["host" if sequence.on_host else "device"]
            blocks = self.cache.blocks(sequence.number)
            read = [
                memory[blocks[p // self.tokens_per_block]][p % self.tokens_per_block]
                for p in range(self.cache.length(sequence.number))
            ]
            assert read == sequence.tokens[: len(read)]

    @invariant()
    def tenants_share_nothing(self) -> None:
        salts: dict[int, str] = {}
        for sequence in getattr(self, "live", {}).values():
            for block in [] if sequence.on_host else self.cache.blocks(sequence.number):
                assert salts.setdefault(block, sequence.salt) == sequence.salt

    def teardown(self) -> None:
        """Check that nothing leaks: with all sequences closed and all steps ended, every block can be handed out."""
        if not hasattr(self, "cache"):
            return
        for number in self.live:
            self.cache.close(number)
        for _ in self.in_flight:
            self.cache.end_step()
        self.cache.check_integrity()
        assert self.cache.num_ready == self.num_blocks
        assert self.cache.num_host_ready == self.num_host_blocks


TestKvCache = KvCacheMachine.TestCase
TestKvCache.settings = settings(max_examples=rounds(150), stateful_step_count=50, deadline=None, derandomize=True)


def test_closed_sequences_are_refused():
    cache = KvCacheBookkeeping(num_blocks=2, num_host_blocks=0, tokens_per_block=2, enable_block_reuse=True)
    number, _ = cache.open([1, 2, 3], "")
    cache.close(number)
    for operation in (cache.close, cache.fork, cache.blocks):
        with pytest.raises(ValueError, match=f"no sequence {number}"):
            operation(number)
