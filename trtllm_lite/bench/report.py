"""What every JSON report says beside its figures: the engine and the shape measured."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtllm_lite.engine.reader import read_engine

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def report(
    benchmark: str, engine_dir: str | Path, shape: "DataclassInstance", figures: dict[str, Any]
) -> dict[str, Any]:
    """The part of a JSON report that is about one measurement."""
    manifest = read_engine(Path(engine_dir)).manifest
    engine = {
        "architecture": manifest.model.architecture,
        "dtype": manifest.model.dtype,
        "target": manifest.target.kind,
        "limits": asdict(manifest.limits),
    }
    return {"benchmark": benchmark, "engine": engine, "shape": asdict(shape), "figures": figures}
