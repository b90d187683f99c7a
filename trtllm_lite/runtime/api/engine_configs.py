"""BuildConfig and QuantConfig, by which TensorRT-LLM's programs tell ``LLM`` how to make an engine."""

from dataclasses import dataclass, fields
from typing import Any

from trtllm_lite.errors import ArgumentError, shown
from trtllm_lite.foreign_names import calls
from trtllm_lite.foreign_names.arguments import takes_foreign_fields
from trtllm_lite.foreign_names.quantization import QUANT_ALGOS


@takes_foreign_fields(calls.BUILD_CONFIG)
@dataclass(kw_only=True, slots=True)
class BuildConfig:
    """The limits of an engine that ``LLM(build_config=…)`` makes; None leaves one to the model and to ``LLM``.

    They are the arguments of these names that ``LLM`` has itself. Other fields of TensorRT-LLM's class are accepted
    with the value that asks for nothing.
    """

    max_batch_size: int | None = None
    max_input_len: int | None = None
    max_seq_len: int | None = None
    max_num_tokens: int | None = None
    gather_context_logits: bool = False

    def arguments(self) -> dict[str, Any]:
        """The arguments of ``LLM`` that are given."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in given.items() if value not in (None, False)}


@takes_foreign_fields(calls.QUANT_CONFIG)
@dataclass(kw_only=True, slots=True)
class QuantConfig:
    """How ``LLM(quant_config=…)`` quantizes the matrices of a model that is stored plain.

    ``quant_algo`` is a QuantAlgo, or its name: W8A16, W4A16 and FP8_PER_CHANNEL_PER_TOKEN need no calibration, and the
    others are what `trtllm-lite quantize` does. ``group_size`` neighbouring weights of a row share a scale in W4A16.

    Raises ArgumentError for a value that makes no sense.
    """

    quant_algo: str | None = None
    group_size: int | None = None

    def arguments(self) -> dict[str, Any]:
        """The arguments of ``LLM`` that are given. Raises ArgumentError for what no engine here is quantized by."""
        if self.quant_algo is None:
            return {}
        qformat = QUANT_ALGOS.get(str(self.quant_algo))
        if qformat is None:
            known = ", ".join(QUANT_ALGOS)
            raise ArgumentError(
                f"quant_algo is {shown(str(self.quant_algo))}: expected one of {known}, or a model that is stored so"
            )
        return {"qformat": qformat} | ({} if self.group_size is None else {"group_size": self.group_size})
