"""Checks that operands which kernels read before they wait for the previous kernel have been written by then.

A kernel starts when all kernels before it run; a kernel that allows the next one to start only after its own wait
(``allow_next_kernel`` of ``cuda/async.cuh``) guarantees that all kernels before it have ended.
"""

from collections.abc import Sequence

from trtllm_lite.builder.cuda.planning import Lowered
from trtllm_lite.plugins.launch import Argument, Command, Launch, Slice, TensorMap

# Kernels that allow the next one to start before their own wait, as the comment in async.cuh lists them.
ALLOW_AT_ONCE = {
    *("rms_norm", "sort_rows", "combine", "combine_norm"),
    *("low_rank_shrink", "low_rank_expand"),
}
# Indices of the arguments, besides weights, that a kernel reads early.
EARLY = {
    **{"sort_rows": (1,), "combine": (2, 3, 4), "combine_norm": (4, 5, 6)},
    **{"grouped_gated_linear": (2,), "grouped_linear": (7, 12)},
}
# The number of leading arguments that a kernel may write. Kernels that are not listed write one, which follows the
# tensor maps of their operands.
WRITTEN = {
    **{"rms_norm": 3, "combine_norm": 3, "sort_by_expert": 5, "choose_rows": 3, "sort_chosen": 2},
    "grouped_gated_linear": 2,
}


def check_early_reads(lowered: Lowered) -> int:
    """Check early reads in every program; returns how many kernels read early."""
    count = 0
    for program in lowered.programs:
        for at, command in enumerate(program.commands):
            if not isinstance(command, Launch) or command.kernel.name not in EARLY:
                continue
            early = {_buffer(command.arguments[i]) for i in EARLY[command.kernel.name]} - {None}
            running = program.commands[_first_running(program.commands, at) : at]
            for other in running:
                assert not early & _written(other), f"{program.name}: {command.kernel.name} reads {early} too early"
            count += 1
    return count


def _first_running(commands: Sequence[Command], at: int) -> int:
    """The first kernel that may still run when kernel number ``at`` starts."""
    before = at - 1
    while isinstance(command := commands[before], Launch) and command.kernel.name in ALLOW_AT_ONCE:
        before -= 1
    return before


def _written(command: Command) -> set[object]:
    if not isinstance(command, Launch):
        return {_buffer(command.y)}
    plain = [argument for argument in command.arguments if not isinstance(argument, TensorMap)]
    return {_buffer(argument) for argument in plain[: WRITTEN.get(command.kernel.name, 1)]}


def _buffer(argument: Argument) -> object:
    return argument.buffer if isinstance(argument, Slice) else argument
