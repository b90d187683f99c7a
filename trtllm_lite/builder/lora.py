"""What engines take no adapters, with the reason."""

from collections.abc import Sequence

from trtllm_lite.builder.cpu.planning import CPU
from trtllm_lite.errors import BuildError
from trtllm_lite.quantize.schemes import SCHEMES


def check_lora(max_rank: int, kind: str, targets: Sequence[str]) -> None:
    """Raise BuildError if engines for ``targets`` have no kernels for adapters."""
    if max_rank and kind != CPU:
        raise BuildError(
            f"max_lora_rank is {max_rank} for {', '.join(targets)}: engines for cpu alone take adapters yet, so build "
            "with --target cpu, or merge the adapter into the model before `trtllm-lite convert`"
        )


def check_lora_of_quantized(max_rank: int, qformat: str) -> None:
    """Raise BuildError if the scheme divides what products multiply, which adapters are not made for."""
    parts = [name for name in SCHEMES if name in qformat and SCHEMES[name].folds]
    if max_rank and parts:
        raise BuildError(
            f"max_lora_rank is {max_rank} and qformat {qformat}: {parts[0]} changes the activations that adapters "
            "were trained for, so quantize in another way (int4_gptq, fp8, or weights alone), or leave it out"
        )
