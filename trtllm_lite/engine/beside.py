"""Reads the engine of the encoder that may live in a decoder's engine directory, in the directory ``text_encoder``."""

from pathlib import Path

from trtllm_lite.common.vocabulary import TEXT_ENCODER
from trtllm_lite.engine.format import ENGINE_FILE
from trtllm_lite.engine.reader import EngineFile, read_engine
from trtllm_lite.errors import EngineError


def read_encoder_beside(engine_dir: Path) -> EngineFile | None:
    """Read the description of the encoder in ``engine_dir``; None if there is none.

    Raises EngineError if it is another module's engine, or damaged (:func:`read_engine`).
    """
    directory = engine_dir / TEXT_ENCODER
    if not (directory / ENGINE_FILE).is_file():
        return None
    engine = read_engine(directory)
    if engine.manifest.module.kind != TEXT_ENCODER:
        found = engine.manifest.module.kind.replace("_", " ")
        raise EngineError(f"{directory} is the engine of a {found}: there is room for that of a text encoder alone")
    return engine
