"""Refuses adapters for engines that cannot take them, with the reason."""

from collections.abc import Sequence

from trtllm_lite.builder.limits import BuildLimits
from trtllm_lite.errors import BuildError
from trtllm_lite.quantize.schemes import SCHEMES


def check_lora(limits: BuildLimits, kind: str, targets: Sequence[str]) -> None:
    """Raise BuildError if engines of the backend ``kind`` for ``targets`` have no kernels for adapters."""
    wanted = f"max_lora_rank is {limits.max_lora_rank} for {', '.join(targets)}"
    merge = "merge the adapter into the model before `trtllm-lite convert`"
    if limits.max_lora_rank and kind == "tensorrt":
        raise BuildError(
            f"{wanted}: engines of the backend tensorrt take no adapters, so build with --backend native, or {merge}"
        )
    if limits.max_lora_rank and kind == "cuda" and limits.deterministic:
        raise BuildError(
            f"{wanted} and deterministic is given: on a GPU a row's rounding would depend on whether another request "
            f"of its step has an adapter, so leave one of them out, build for cpu, or {merge}"
        )


def check_lora_of_quantized(max_rank: int, qformat: str) -> None:
    """Raise BuildError if the scheme scales the inputs of products, as adapters were trained for unscaled inputs."""
    parts = [name for name in SCHEMES if name in qformat and SCHEMES[name].folds]
    if max_rank and parts:
        raise BuildError(
            f"max_lora_rank is {max_rank} and qformat {qformat}: {parts[0]} changes the activations that adapters "
            "were trained for, so use another qformat (int4_gptq, fp8, or weights alone), or leave max_lora_rank out"
        )
