"""Refuses limits and options that a network's kind of module has no use for."""

from collections.abc import Mapping
from dataclasses import fields

import onnx_ir as ir

from trtllm_lite.builder.cache_dtype import AUTO_DTYPE
from trtllm_lite.builder.limits import BuildLimits
from trtllm_lite.errors import BuildError
from trtllm_lite.network.module_kinds import module_kind


def check_module(graph: ir.Graph, limits: BuildLimits, caches: Mapping[str, str], backend: str) -> None:
    """Raise BuildError for limits, types of ``caches`` and backends that the module has no use for."""
    kind = module_kind(graph)
    set_limits = {one.name: getattr(limits, one.name) for one in fields(limits)}
    usual = {one.name: one.default for one in fields(limits)}
    given = {name: value for name, value in set_limits.items() if value != usual[name]}
    given |= {name: dtype for name, dtype in caches.items() if dtype != AUTO_DTYPE}
    given |= {"backend": backend} if backend == "tensorrt" else {}
    kind.check(**given)
    if not kind.generates and limits.num_tokens < limits.max_input_len:
        raise BuildError(
            f"max_num_tokens is {limits.num_tokens}, below max_input_len {limits.max_input_len}: an encoder computes a "
            "text in one step, so raise max_num_tokens or lower max_input_len"
        )
