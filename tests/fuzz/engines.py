"""Takes an engine apart, so that its parts can be changed and its checksums corrected."""

import json
import struct
from pathlib import Path

import numpy as np

from tests.fuzz.model_files import write_model
from tests.unit.csrc.tiny_engine import TinyEngine
from trtllm_lite.builder import build_engine
from trtllm_lite.convert import convert_checkpoint

LIMITS = {"max_batch_size": 2, "max_input_len": 16, "max_seq_len": 48, "tokens_per_block": 16}
_NUMPY = {"F32": np.float32, "F16": np.float16, "U8": np.uint8}


def built_engine(scratch: Path) -> TinyEngine:
    """The engine of the tiny Llama without its tokenizer, built in ``scratch``."""
    (scratch / "model").mkdir()
    write_model(scratch / "model")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (scratch / "model" / name).unlink()
    convert_checkpoint(str(scratch / "model"), scratch / "checkpoint")
    build_engine(scratch / "checkpoint", scratch / "engine", **LIMITS)
    return taken_apart((scratch / "engine" / "rank0.engine").read_bytes())


def taken_apart(content: bytes) -> TinyEngine:
    """The parts of the engine file with this ``content``."""
    (length,) = struct.unpack("<Q", content[:8])
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    metadata = {key: value for key, value in header.pop("__metadata__").items() if "crc32c" not in key}
    metadata.pop("checksums")

    def array(name: str) -> np.ndarray:
        start, end = header[name]["data_offsets"]
        return np.frombuffer(data[start:end], _NUMPY[header[name]["dtype"]]).reshape(header[name]["shape"])

    names = sorted(header, key=lambda name: header[name]["data_offsets"])
    weights = {name.removeprefix("weights."): array(name) for name in names if name.startswith("weights.")}
    manifest, plan = (json.loads(array(name).tobytes()) for name in ("manifest", "plan"))
    return TinyEngine(manifest, plan, weights, metadata)
