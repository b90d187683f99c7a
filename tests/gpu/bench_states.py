"""Times operators with a replayed state: steps of one token for each sequence, and a long prompt.

python -m tests.gpu.bench_states [NAME]...
"""

import sys
from typing import Any

import numpy as np
import torch

from tests.gpu.device import GPU
from tests.gpu.launches import H200, Prepared
from tests.gpu.state_checks import StateKernel, StateLowering
from tests.gpu.timing import report, timed
from tests.state_batch import GROUP, NUM_GROUPS, Operator, gated_delta_rule, mamba2
from trtllm_lite.plugins.replay import REPLAYED, ReplayState

OPERATORS = {
    "GatedDeltaRule of Qwen3.5 35B-A3B": gated_delta_rule(16, 32, 128, 128, taken_back=1),
    "GatedDeltaRule of Qwen3.6 27B": gated_delta_rule(16, 48, 128, 128, taken_back=1),
    "Mamba2 of Nemotron 3 Nano": mamba2(64, 8, 128, 64, taken_back=1),
    "GatedDeltaRule by channel of Kimi Linear": gated_delta_rule(32, 32, 128, 128, by_channel=True, taken_back=1),
}
SEQUENCES = (16, 32, 64, 256)
BEHIND = REPLAYED // 2  # tokens behind the matrix of a step that only reads it; REPLAYED if it is written
PROMPT = 8000
LAYERS = 4


def inputs(operator: Operator, past: int, count: int, sequences: int) -> list[Any]:
    """The inputs of a step of ``count`` random tokens of each sequence, after ``past`` ones."""
    rng = np.random.default_rng(0)
    rows = [rng.standard_normal((sequences * count, width), np.float32) for width in operator.widths]
    states = rng.standard_normal((1, *operator.state), np.float32).repeat(sequences, 0) / 8
    operator.parts(states)["decays"][...] = -0.1
    operator.parts(states)["length"][...] = max(past - 1, 0) // REPLAYED * REPLAYED
    tables = np.zeros((sequences, NUM_GROUPS, 2), np.int32)
    tables[:, GROUP, 0] = np.arange(sequences)
    places = [np.arange(sequences + 1) * count, np.full(sequences, past), tables.reshape(-1, 2)]
    return [*rows, *operator.weights, states, *(place.astype(np.int32) for place in places), *operator.last]


def prepared(
    operator: Operator, past: int, count: int, sequences: int, *, decode: bool
) -> tuple[list[Prepared], torch.Tensor]:
    """The launches of such a step in bfloat16, and the states [sequences, heads, words] that they change."""
    kernel = StateKernel(operator, torch.bfloat16, GPU, decode=decode, max_decode_seqs=sequences)
    op = StateLowering(kernel, inputs(operator, past, count, sequences), operator.attributes)
    op.device = H200
    symbols = {"num_seqs": sequences, "num_tokens": sequences * count, "max_blocks_per_seq": 2}
    launches = [Prepared(launch, op.memory.tensors, symbols) for launch in op.launches()]
    states = op.memory.tensors[op.buffers[op.state_name]]
    return launches, states[:, : -op.GAP].unflatten(1, operator.state)


def run(launches: list[Prepared]) -> None:
    for launch in launches:
        launch(programmatic=True)


def report_steps(name: str, operator: Operator, layout: ReplayState, sequences: int) -> None:
    """Report a step that reads the matrices, and one that adds the tokens behind them and writes them, too.

    Several layers follow each other, whose states do not fit the L2 cache together.
    """
    heads, matrix = operator.state[0], layout.key_dim * layout.value_dim
    of_token = layout.key_dim + layout.value_dim + layout.decays
    layers = [prepared(operator, 64 + BEHIND, 1, sequences, decode=True) for _ in range(LAYERS)]
    words = LAYERS * heads * sequences * (matrix + (BEHIND + 1) * of_token)
    time = timed(lambda: [run(launches) for launches, _ in layers])
    report(f"{name}, {sequences} sequences", time, 4 * words, LAYERS)
    layers = [prepared(operator, 64 + REPLAYED, 1, sequences, decode=True) for _ in range(LAYERS)]
    lengths = [states[..., matrix + layout.slots * of_token] for _, states in layers]

    def shorten() -> None:
        for length in lengths:
            length.fill_(64)

    def again() -> None:
        shorten()
        for launches, _ in layers:
            run(launches)

    words = LAYERS * heads * sequences * (2 * matrix + (REPLAYED + 1) * of_token)
    report(f"{name}, {sequences}, written", timed(again) - timed(shorten), 4 * words, LAYERS)


def report_prompt(name: str, operator: Operator, layout: ReplayState) -> None:
    launches, _ = prepared(operator, 0, PROMPT, 1, decode=False)
    num_bytes = 2 * PROMPT * (sum(operator.widths) + operator.state[0] * layout.value_dim)
    report(f"{name}, {PROMPT} tokens", timed(lambda: run(launches)), num_bytes)


def main() -> None:
    for name, operator in OPERATORS.items():
        if sys.argv[1:] and not any(part in name for part in sys.argv[1:]):
            continue
        layout = operator.layout
        assert layout is not None
        for sequences in SEQUENCES:
            report_steps(name, operator, layout, sequences)
        report_prompt(name, operator, layout)


if __name__ == "__main__":
    main()
