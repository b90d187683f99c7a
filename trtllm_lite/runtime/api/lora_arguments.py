"""Reads lora_dir and lora_uids, arguments of TensorRT-LLM's ModelRunner."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trtllm_lite.errors import ArgumentError, shown
from trtllm_lite.runtime.lora.request import LoRARequest

_NO_ADAPTER = "-1"


def loras_of(lora_dir: Any) -> tuple[LoRARequest, ...]:
    """A LoRARequest for the adapter in each directory, numbered from 1. Raises ArgumentError."""
    if lora_dir is None:
        return ()
    paths = [lora_dir] if isinstance(lora_dir, str | Path) else lora_dir
    if not isinstance(paths, Sequence) or not all(isinstance(path, str | Path) for path in paths):
        raise ArgumentError(f"lora_dir is {shown(lora_dir)}: expected a directory, or a list of directories")
    return tuple(LoRARequest(Path(path).name, number, str(path)) for number, path in enumerate(paths, 1))


def chosen_loras(lora_uids: Any, loras: Sequence[LoRARequest], batch_size: int) -> list[LoRARequest | None]:
    """The adapter of each prompt. Raises ArgumentError for a number that lora_dir does not have."""
    uids = [lora_uids] * batch_size if lora_uids is None or isinstance(lora_uids, str) else list(lora_uids)
    if len(uids) != batch_size:
        raise ArgumentError(f"lora_uids has {len(uids)} entries for {batch_size} prompts: pass one for each")
    known: dict[str | None, LoRARequest | None] = {str(number): lora for number, lora in enumerate(loras)}
    known |= {None: None, _NO_ADAPTER: None}
    for uid in uids:
        if not isinstance(uid, str | None) or uid not in known:
            raise ArgumentError(
                f"lora_uids has {shown(uid)}: expected the index of one of the {len(loras)} directories in "
                'lora_dir, such as "0", or "-1" for no adapter'
            )
    return [known[uid] for uid in uids]
