"""Times whole decode steps (weights, attention, LM head, greedy choice) as one CUDA graph.

python -m tests.gpu.bench_step
"""

from functools import partial

from tests.gpu.decode_step import DecodeStep, StepOptions
from tests.gpu.kernels import LLAMA_1B, LLAMA_8B
from tests.gpu.timing import report, timed


def main() -> None:
    for name, shape, layers in (("8B", LLAMA_8B, 32), ("1B", LLAMA_1B, 16)):
        for batch, past in ((1, 128), (1, 1024), (4, 128), (8, 128), (8, 1024)):
            step = DecodeStep(shape, layers, batch, past, StepOptions())
            case = f"{name} batch {batch} past {past}"
            report(case, timed(step.run), step.num_bytes)
            report(f"{case}, plain launches", timed(partial(step.run, programmatic=False)), step.num_bytes)


if __name__ == "__main__":
    main()
