"""Makes the identity of a JSON report: where, with which software, and what exactly was measured."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtllm_lite.bench.machine import describe
from trtllm_lite.engine.reader import read_engine

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def identity(
    benchmark: str,
    engine_dir: str | Path,
    shape: "DataclassInstance",
    runtime: Mapping[str, Any],
    terms: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A report without figures: commit, date, versions, machine, engine, shape and options of the runtime.

    The identity is known before anything is measured, so that a baseline of another measurement is refused at once.
    ``runtime`` holds the arguments of ``ModelRunner.from_dir``, ``terms`` the objectives and the price that figures are
    computed with. Entries that are None or empty are left out.
    """
    manifest = read_engine(Path(engine_dir)).manifest
    model = manifest.model
    described = {
        "architecture": model.architecture,
        "dtype": model.dtype,
        "qformat": manifest.qformat,
        "kv_cache_dtype": manifest.kv_cache.dtype,
        "target": manifest.target.kind,
        "stripped": manifest.stripped,
        "hidden_size": model.hidden_size,
        "num_hidden_layers": model.num_hidden_layers,
        "vocab_size": model.vocab_size,
        "tokens_per_block": manifest.kv_cache.tokens_per_block,
        **({"deterministic": True} if manifest.deterministic else {}),
        **({} if manifest.lora is None else {"max_lora_rank": manifest.lora.max_rank}),
        **manifest.divided,
        "limits": asdict(manifest.limits),
    }
    return _identity(benchmark, manifest.target.kind, described, shape, runtime, terms or {})


def server_identity(
    benchmark: str, model: str, shape: "DataclassInstance", asking: Mapping[str, Any], terms: Mapping[str, Any]
) -> dict[str, Any]:
    """Like :func:`identity`, for a server that runs the model named ``model``; ``asking`` is the form of requests.

    The machine is the client's. The server's address and software are not part of it, so that servers can be compared.
    """
    return _identity(benchmark, "cpu", {"model": model}, shape, asking, terms)


def _identity(
    benchmark: str,
    target: str,
    engine: Mapping[str, Any],
    shape: "DataclassInstance",
    runtime: Mapping[str, Any],
    terms: Mapping[str, Any],
) -> dict[str, Any]:
    return {
        **describe(target),
        "benchmark": benchmark,
        "engine": engine,
        "shape": asdict(shape),
        "runtime": {name: value for name, value in runtime.items() if value is not None},
        "terms": {name: value for name, value in terms.items() if value not in (None, {})},
    }
