"""Refuses limits and options that a network's kind of module has no use for."""

from collections.abc import Mapping
from dataclasses import fields

from trtllm_lite.builder.cache_dtype import AUTO_DTYPE
from trtllm_lite.builder.limits import BuildLimits
from trtllm_lite.network.module_kinds import ModuleKind


def check_module(kind: ModuleKind, limits: BuildLimits, caches: Mapping[str, str], backend: str) -> None:
    """Raise BuildError for limits, types of ``caches`` and backends that modules of this ``kind`` have no use for."""
    set_limits = {one.name: getattr(limits, one.name) for one in fields(limits)}
    usual = {one.name: one.default for one in fields(limits)}
    given = {name: value for name, value in set_limits.items() if value != usual[name]}
    given |= {name: dtype for name, dtype in caches.items() if dtype != AUTO_DTYPE}
    given |= {"backend": backend} if backend == "tensorrt" else {}
    kind.check(**given)
