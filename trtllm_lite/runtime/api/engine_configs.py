"""Defines BuildConfig and QuantConfig, with which TensorRT-LLM's programs tell ``LLM`` how to make an engine."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from trtllm_lite.errors import ArgumentError, shown
from trtllm_lite.foreign_names import calls
from trtllm_lite.foreign_names.arguments import takes_foreign_fields
from trtllm_lite.foreign_names.quantization import CACHE_ALGOS, QUANT_ALGOS


@takes_foreign_fields(calls.BUILD_CONFIG)
@dataclass(kw_only=True, slots=True)
class BuildConfig:
    """The limits of an engine that ``LLM(build_config=…)`` makes; for None, ``LLM`` takes a limit that fits the model.

    ``LLM`` has arguments of the same names and meanings. Other fields of TensorRT-LLM's class are accepted only with
    values that have no effect.
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
    """How ``LLM(quant_config=…)`` quantizes the matrices of a model that is stored unquantized.

    ``quant_algo`` is a QuantAlgo, or its name, for which ``LLM`` has a qformat: "fp8" for FP8, "int4_awq" for
    W4A16_AWQ. ``kv_cache_quant_algo`` is FP8 or INT8. ``group_size`` is the number of neighbouring 4-bit weights of a
    row that share a scale.

    Raises ArgumentError for an invalid value.
    """

    quant_algo: str | None = None
    kv_cache_quant_algo: str | None = None
    group_size: int | None = None

    def arguments(self) -> dict[str, Any]:
        """The arguments of ``LLM`` that are given. Raises ArgumentError for an unsupported algorithm."""
        given = {
            "qformat": _own("quant_algo", self.quant_algo, QUANT_ALGOS),
            "kv_cache_config.dtype": _own("kv_cache_quant_algo", self.kv_cache_quant_algo, CACHE_ALGOS),
            "group_size": self.group_size,
        }
        return {name: value for name, value in given.items() if value is not None}


def _own(name: str, value: str | None, known: Mapping[str, str]) -> str | None:
    if value is None or str(value) in known:
        return known.get(str(value))
    raise ArgumentError(
        f"{name} is {shown(str(value))}: expected one of {', '.join(known)}, or a model that is stored quantized so"
    )
