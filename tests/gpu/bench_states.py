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
from trtllm_lite.plugins.replay import REPLAYED

OPERATORS = {
    "GatedDeltaRule of Qwen3.5 35B-A3B": gated_delta_rule(16, 32, 128, 128, taken_back=0),
    "GatedDeltaRule of Qwen3.6 27B": gated_delta_rule(16, 48, 128, 128, taken_back=0),
    "Mamba2 of Nemotron 3 Nano": mamba2(64, 8, 128, 64, taken_back=0),
    "GatedDeltaRule by channel of Kimi Linear": gated_delta_rule(32, 32, 128, 128, by_channel=True, taken_back=0),
}
SEQUENCES = (16, 64, 256)
BEHIND = REPLAYED // 2  # tokens behind the matrix, of REPLAYED - 1 at most
PROMPT = 8000


def inputs(operator: Operator, past: int, count: int, sequences: int) -> list[Any]:
    """The inputs of a step of ``count`` random tokens of each sequence, after ``past`` ones."""
    rng = np.random.default_rng(0)
    rows = [rng.standard_normal((sequences * count, width), np.float32) for width in operator.widths]
    states = rng.standard_normal((1, *operator.state), np.float32).repeat(sequences, 0) / 8
    operator.parts(states)["decays"][...] = -0.1
    operator.parts(states)["length"][...] = past // REPLAYED * REPLAYED
    tables = np.zeros((sequences, NUM_GROUPS, 2), np.int32)
    tables[:, GROUP, 0] = np.arange(sequences)
    places = [np.arange(sequences + 1) * count, np.full(sequences, past), tables.reshape(-1, 2)]
    return [*rows, *operator.weights, states, *(place.astype(np.int32) for place in places), *operator.last]


def prepared(operator: Operator, past: int, count: int, sequences: int, *, decode: bool) -> list[Prepared]:
    """The launches of such a step in bfloat16."""
    kernel = StateKernel(operator, torch.bfloat16, GPU, decode=decode)
    op = StateLowering(kernel, inputs(operator, past, count, sequences), operator.attributes)
    op.device = H200
    symbols = {"num_seqs": sequences, "num_tokens": sequences * count, "max_blocks_per_seq": 2}
    return [Prepared(launch, op.memory.tensors, symbols) for launch in op.launches()]


def main() -> None:
    for name, operator in OPERATORS.items():
        if sys.argv[1:] and not any(part in name for part in sys.argv[1:]):
            continue
        layout = operator.layout
        assert layout is not None
        heads, word = operator.state[0], 4
        of_token = layout.key_dim + layout.value_dim + layout.decays
        for sequences in SEQUENCES:
            # A step reads the matrix and the tokens behind it, and writes a token.
            read = word * heads * (layout.key_dim * layout.value_dim + (BEHIND + 1) * of_token)
            launches = prepared(operator, 64 + BEHIND, 1, sequences, decode=True)
            time = timed(lambda launches=launches: [launch(programmatic=True) for launch in launches])
            report(f"{name}, {sequences} sequences", time, read * sequences)
        launches = prepared(operator, 0, PROMPT, 1, decode=False)
        time = timed(lambda launches=launches: [launch(programmatic=True) for launch in launches])
        num_bytes = 2 * PROMPT * (sum(operator.widths) + heads * layout.value_dim)
        report(f"{name}, {PROMPT} tokens", time, num_bytes)


if __name__ == "__main__":
    main()
