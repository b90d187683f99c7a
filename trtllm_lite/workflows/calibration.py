"""Calibrates on this project's own engine: builds one with observers, and lets it read the text."""

import hashlib
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.builder import Checkpoint, build_engine
from trtllm_lite.common.foreign_files import sha256_of
from trtllm_lite.common.progress import Report
from trtllm_lite.common.scratch import scratch_directory
from trtllm_lite.errors import ArgumentError, EngineError
from trtllm_lite.quantize.calibration.calibrate import Wanted, calibrate
from trtllm_lite.quantize.calibration.dataset import CalibrationText
from trtllm_lite.quantize.calibration.observed import Observed
from trtllm_lite.quantize.calibration.store import StatisticsStore
from trtllm_lite.runtime.sequence_runner import SequenceRunner
from trtllm_lite.runtime.session.device import check_num_threads
from trtllm_lite.runtime.text.tokenizer import Tokenizer
from trtllm_lite.workflows.device import Device, check_device, target_of
from trtllm_lite.workflows.observer import MAX_STEP_TOKENS, engine_observer

# Bytes of all observed outputs of a step, with at most four bytes per element.
_ROWS_BYTES = {"cpu": 256 << 20, "cuda": 16 << 30}


@dataclass(frozen=True)
class Calibration:
    """How to calibrate. ``directory`` keeps statistics, so that an interrupted run can resume; None keeps none.

    ``device`` runs the model: ``cpu``, with ``num_threads`` threads, or ``cuda``, the GPU of this machine.
    """

    text: CalibrationText = field(default_factory=CalibrationText)
    directory: Path | None = None
    num_threads: int | None = None
    device: Device = "cpu"

    def __post_init__(self) -> None:
        check_device(self.device)
        check_num_threads(self.num_threads, on_gpu=self.device == "cuda")


@contextmanager
def statistics_of(
    checkpoint: Checkpoint,
    inputs: Mapping[str, Observed],
    calibration: Calibration,
    gram: bool,
    report: Report,
) -> Iterator[StatisticsStore]:
    """Statistics, by name, of ``inputs``: inputs of products or of KV caches in the checkpoint's network.

    Raises BuildError, ArgumentError (the text), OutputError, EngineError (a model without weights or tokenizer).
    """
    if checkpoint.path is None:
        raise EngineError("a model config has no weights to calibrate with: pass a checkpoint")
    with _directory(calibration) as directory, resumable(calibration):
        key = calibration_key(checkpoint.path, calibration, f"{gram}") if calibration.directory else ""
        store = StatisticsStore(directory, key)
        if store.missing(list(inputs)):
            _run(checkpoint, inputs, calibration, gram, directory / "engine", store, report)
        yield store


def _run(
    checkpoint: Checkpoint,
    inputs: Mapping[str, Observed],
    calibration: Calibration,
    gram: bool,
    engine_dir: Path,
    store: StatisticsStore,
    report: Report,
) -> None:
    features = {name: observed.features for name, observed in inputs.items()}
    sequences = _sequences(checkpoint, calibration.text)
    try:
        _build(checkpoint, inputs, calibration, engine_dir, sum(features.values()), report)
        runner = SequenceRunner(engine_dir, num_threads=calibration.num_threads)
        calibrate(Wanted(features, gram, calibration.text.seed), engine_observer(runner), sequences, store, report)
    finally:
        shutil.rmtree(engine_dir, ignore_errors=True)


def _sequences(checkpoint: Checkpoint, text: CalibrationText) -> list[NDArray[np.int32]]:
    if checkpoint.path is None or not checkpoint.config.tokenizer:
        raise EngineError("the checkpoint has no tokenizer to read the calibration text with: convert one that has")
    tokenizer = Tokenizer.from_files(checkpoint.path)
    return text.sequences(partial(tokenizer.encode, add_special_tokens=False), tokenizer.encode(""))


def _build(
    checkpoint: Checkpoint,
    inputs: Mapping[str, Observed],
    calibration: Calibration,
    engine_dir: Path,
    num_features: int,
    report: Report,
) -> None:
    """Build the engine with observers; its steps are as long as memory for the observed rows of each layer allows."""
    length, positions = calibration.text.max_seq_length, checkpoint.config.max_position_embeddings
    most = _ROWS_BYTES[calibration.device] // (4 * num_features)
    if length > positions:
        raise ArgumentError(f"calib_max_seq_length is {length}, and the model takes {positions} tokens: lower it")
    build_engine(
        checkpoint,
        engine_dir,
        target=target_of(calibration.device),
        observed={name: observed.paths for name, observed in inputs.items()},
        progress=report,
        gather_context_logits=True,
        max_batch_size=1,
        max_input_len=length,
        max_seq_len=length,
        max_num_tokens=max(1, min(MAX_STEP_TOKENS, length, most)),
    )


@contextmanager
def _directory(calibration: Calibration) -> Iterator[Path]:
    if calibration.directory is not None:
        yield Path(calibration.directory)
        return
    with scratch_directory("calibration") as directory:
        yield directory


@contextmanager
def resumable(calibration: Calibration) -> Iterator[None]:
    """Add to an interrupt within the body a note on how a later run resumes, unless it has a note already."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        if not hasattr(interrupt, "__notes__"):
            interrupt.add_note(
                "what calibration has found is lost; with --calib_dir DIR a later run continues from it"
                if calibration.directory is None
                else f"the same command continues from what --calib_dir {calibration.directory} keeps"
            )
        raise


def calibration_key(checkpoint: Path, calibration: Calibration, how: str) -> str:
    """A key that differs for another checkpoint, other texts, and other ways to read them, which ``how`` describes."""
    digest, text = hashlib.sha256(), calibration.text
    for file in sorted(checkpoint.iterdir()):
        digest.update(f"{file.name}:{sha256_of(file)}\n".encode())
    for content in text.texts():
        digest.update(hashlib.sha256(content.encode()).digest())
    digest.update(f"{text.size} {text.max_seq_length} {text.seed} {calibration.device} {how}".encode())
    return digest.hexdigest()
