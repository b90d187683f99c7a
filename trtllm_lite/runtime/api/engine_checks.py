"""Checks the arguments of ``LLM`` against the engine that was given."""

from collections.abc import Mapping, Sequence

from trtllm_lite.common.vocabulary import AUTO_TARGET
from trtllm_lite.engine.manifest import Manifest
from trtllm_lite.errors import ArgumentError, shown


def check_engine(manifest: Manifest, target: str | None, dtype: str, flags: Mapping[str, bool]) -> None:
    """Raise ArgumentError if the engine was built with another target or dtype, or without one of ``flags``."""
    targets = manifest.target.archs or ("cpu",)
    if target not in (None, AUTO_TARGET) and not _names(target) <= _names(",".join(targets)):
        raise ArgumentError(f"target is {shown(target)}, but this engine runs on {', '.join(targets)}: leave it out")
    found = manifest.model.dtype
    if dtype not in ("auto", found):
        raise ArgumentError(
            f"dtype is {shown(dtype)}, but this engine's matrices are {found}: leave it out, or convert again"
        )
    for name, asked in flags.items():
        is_so = name == "deterministic" and manifest.target.kind == "cpu"
        if asked and not is_so and not getattr(manifest, name):
            raise ArgumentError(f"this engine was built without {name}: build it again with it, or leave it out")


def check_qformat(manifest: Manifest, qformat: str | None) -> None:
    """Raise ArgumentError if the engine's matrices are not quantized as ``qformat`` says; None takes any."""
    if qformat not in (None, manifest.qformat):
        raise ArgumentError(
            f"qformat is {shown(qformat)}, but this engine's matrices are {manifest.qformat}: leave it out, or build "
            "the engine again"
        )


def check_divided(name: str, given: int | None, built: int) -> None:
    """Raise ArgumentError if the engine was built for another number of devices than ``given``."""
    if given is not None and given != built:
        raise ArgumentError(
            f"{name} is {shown(given)}, but this engine was built with {built}: leave it out, or build the engine again"
        )


def check_lora(manifest: Manifest, max_lora_rank: int | None) -> None:
    """Raise ArgumentError if the engine takes only adapters of lower ranks than ``max_lora_rank``."""
    lora = manifest.lora
    built = 0 if lora is None else lora.max_rank
    if max_lora_rank is not None and max_lora_rank > built:
        raise ArgumentError(
            f"max_lora_rank is {shown(max_lora_rank)}, but this engine was built with {built}: leave it out, or build "
            "the engine again"
        )


def check_ignored(manifest: Manifest, keys: Sequence[str]) -> None:
    """Raise ArgumentError if ``keys`` has keys that were not ignored when the model was converted."""
    ignored = manifest.model.ignored_config_keys
    others = sorted(set(keys) - set(ignored))
    if others:
        raise ArgumentError(
            f"ignore_config_keys names {', '.join(map(shown, others))}, and the model was converted without ignoring "
            "these: leave them out, or pass the model itself to have it converted again"
        )


def _names(targets: str) -> set[str]:
    """The names in ``targets``, which commas separate; sm_90 and sm_90a count as one."""
    return {name.strip().removesuffix("a") for name in targets.split(",")}
