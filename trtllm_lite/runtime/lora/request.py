"""LoRARequest names the adapter of a request, as vLLM and TensorRT-LLM spell it."""

from dataclasses import dataclass

from trtllm_lite.errors import ArgumentError, shown
from trtllm_lite.runtime.values import is_unicode, whole_number

_MAX_ID = 2**31 - 1


@dataclass(frozen=True)
class LoRARequest:
    """An adapter in PEFT's format: ``lora_path`` is a local directory with adapter_model.safetensors.

    ``lora_int_id`` identifies an adapter: requests with one id share the loaded adapter, and have to have the same name
    and path. If ``lora_root`` is given, no link of the adapter may lead out of that directory. Raises ArgumentError for
    invalid values.
    """

    lora_name: str
    lora_int_id: int
    lora_path: str
    lora_root: str | None = None

    def __post_init__(self) -> None:
        whole_number("lora_int_id", self.lora_int_id, 1, _MAX_ID)
        for name in ("lora_name", "lora_path", "lora_root"):
            value = getattr(self, name)
            if name == "lora_root" and value is None:
                continue
            if not isinstance(value, str) or not value or "\0" in value or not is_unicode(value):
                raise ArgumentError(f"{name} is {shown(value)}: expected a non-empty string without NUL")
