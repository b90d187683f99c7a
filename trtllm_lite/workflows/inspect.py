"""Describes the engine or checkpoint at a path; checkpoints need the builder."""

from pathlib import Path

from trtllm_lite.engine.format import ENGINE_FILE
from trtllm_lite.engine.inspect import Inspection, inspect_engine
from trtllm_lite.errors import EngineError
from trtllm_lite.network.config import NETWORK_FILE


def inspect_path(path: Path) -> Inspection:
    """Describe an engine directory, an engine file or a checkpoint directory; weights are not read.

    Raises EngineError if ``path`` is none of the three or is damaged.
    """
    path = Path(path)
    if (path / NETWORK_FILE).is_file():
        return _inspect_checkpoint(path)
    if path.is_dir() and not (path / ENGINE_FILE).is_file():
        raise EngineError(
            f"{path} is neither an engine (it holds no {ENGINE_FILE}) nor a checkpoint (no {NETWORK_FILE}): "
            "pass the output_dir of `trtllm-lite build` or `trtllm-lite convert`"
        )
    return inspect_engine(path)


def _inspect_checkpoint(path: Path) -> Inspection:
    """Describe a checkpoint. This needs the build extra, which is therefore imported only here."""
    try:
        from trtllm_lite.builder.inspect import inspect_checkpoint
    except ImportError as error:
        raise EngineError(
            f"{path} is a checkpoint, and reading its network needs {error.name}: pip install 'trtllm_lite[build]'"
        ) from error
    return inspect_checkpoint(path)
