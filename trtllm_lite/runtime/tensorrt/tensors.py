"""Checks the tensors of a network that TensorRT compiled against the manifest, by which memory is allocated."""

from collections.abc import Iterator, Mapping
from typing import Any

from trtllm_lite.common.vocabulary import ATTENTION, COMPILED_INPUTS, LOGITS, cache_names, num_bytes
from trtllm_lite.engine.manifest import KvCache, Manifest
from trtllm_lite.errors import EngineError, shown
from trtllm_lite.runtime.tensorrt.library import Library

_Shape = tuple[int | str, ...]  # a symbol stands for an extent that changes from step to step
_CHANGES = -1  # TensorRT's number for an extent that is unknown at compile time
_REMEDY = "build the engine again"


def check_tensors(library: Library, engine: Any, manifest: Manifest, most: Mapping[str, int]) -> None:
    """Raise EngineError unless ``engine`` has the tensors of ``manifest``, and updates its caches in place.

    ``most`` are the largest extents that memory is allocated for: ``num_blocks`` (rows of caches) and ``num_logits``.
    """
    _check_blocks(manifest.kv_cache)
    expected = {name: (dtype, shape) for name, dtype, shape in _tensors(manifest)}
    found = {engine.get_tensor_name(index) for index in range(engine.num_io_tensors)}
    if found != expected.keys():
        raise EngineError(
            f"the network has other tensors than the manifest says: {shown(sorted(expected.keys() - found))} are "
            f"missing, {shown(sorted(found - expected.keys()))} are unknown; {_REMEDY}"
        )
    for name, (dtype, shape) in expected.items():
        found_dtype, found_shape = engine.get_tensor_dtype(name), tuple(engine.get_tensor_shape(name))
        if found_dtype != getattr(library.module, dtype) or not _fits(found_shape, shape, most):
            raise EngineError(
                f"the network's {name}: expected {dtype} {_text(shape)}, found {found_dtype} {_text(found_shape)}; "
                f"{_REMEDY}"
            )
    for names in cache_names(enumerate([ATTENTION] * manifest.kv_cache.num_layers)):
        aliased = engine.get_aliased_input_tensor(names.present)
        if aliased != names.past:
            raise EngineError(
                f"the network's {names.present}: expected it in the memory of {names.past}, which is updated in place, "
                f"found it in that of {shown(aliased)}; {_REMEDY}"
            )


def _check_blocks(cache: KvCache) -> None:
    expected = 2 * cache.num_layers * num_bytes(cache.dtype, cache.row_shape)
    if cache.bytes_per_block != expected:
        raise EngineError(
            f"the manifest's kv_cache: expected bytes_per_block {expected:,}, as its dtype and extents say, found "
            f"{cache.bytes_per_block:,}; {_REMEDY}"
        )


def _tensors(manifest: Manifest) -> Iterator[tuple[str, str, _Shape]]:
    """The name, dtype and shape of each input and output."""
    cache = manifest.kv_cache
    for name, rank in COMPILED_INPUTS.items():
        yield name, "int64", ("any",) * rank  # the profiles bound these extents
    yield LOGITS, "float32", ("num_logits", manifest.model.vocab_size)
    for names in cache_names(enumerate([ATTENTION] * cache.num_layers)):
        for name in (names.past, names.present):
            yield name, cache.dtype, ("num_blocks", *cache.row_shape)


def _fits(found: tuple[int, ...], shape: _Shape, most: Mapping[str, int]) -> bool:
    def fits(extent: int, expected: int | str) -> bool:
        if isinstance(expected, int):
            return extent == expected
        return extent == _CHANGES or extent <= most.get(expected, extent)

    return len(found) == len(shape) and all(map(fits, found, shape))


def _text(shape: _Shape) -> str:
    return f"[{', '.join(map(str, shape))}]"
