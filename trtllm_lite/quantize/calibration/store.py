"""Stores statistics in a directory, a safetensors file for each input, so that calibration can be resumed."""

import re
from pathlib import Path

from trtllm_lite.common.files import write_file, writing
from trtllm_lite.common.temporaries import temporary_name
from trtllm_lite.convert.sources.safetensors_file import SafetensorsFile, TensorInfo, plan_layout, write_safetensors
from trtllm_lite.errors import ArgumentError
from trtllm_lite.quantize.calibration.statistics import Statistics

_KEY_FILE = "key"
_KEY = re.compile(rb"[0-9a-f]{64}")


class StatisticsStore:
    """A ``directory`` with the statistics that belong to ``key``: a checkpoint, a text and how it is read."""

    def __init__(self, directory: Path, key: str) -> None:
        """Raises ArgumentError if the directory is in use for another key, OutputError if it cannot be written."""
        self._directory = Path(directory)
        key_file = self._directory / _KEY_FILE
        with writing(str(directory), "name another directory for calibration"):
            self._directory.mkdir(parents=True, exist_ok=True)
            if self._is_unused():
                write_file(key_file, key.encode())
        if not key_file.is_file():
            raise ArgumentError(
                f"{directory} holds other files than statistics of a calibration: name another directory"
            )
        if key_file.read_bytes() != key.encode():
            raise ArgumentError(
                f"{directory} does not hold statistics of this checkpoint, text and settings (calib_size, "
                "calib_max_seq_length, calib_seed, device, and what the scheme needs): name another directory, or "
                "remove this one"
            )

    def _is_unused(self) -> bool:
        """Whether the directory is empty, or has only the key of a run that failed before it had statistics."""
        files = list(self._directory.iterdir())
        return not files or (files == [self._directory / _KEY_FILE] and bool(_KEY.fullmatch(files[0].read_bytes())))

    def missing(self, names: list[str]) -> list[str]:
        """The names among ``names`` that have no statistics yet."""
        return [name for name in names if not self._path(name).is_file()]

    def write(self, name: str, statistics: Statistics) -> None:
        """Keep the statistics of one input. Raises OutputError."""
        tensors = statistics.tensors()
        layout = plan_layout({key: TensorInfo("float32", value.shape) for key, value in tensors.items()})
        path = self._path(name)
        temporary = temporary_name(path)
        with writing(str(path), "free space there, or name another directory for calibration"):
            write_safetensors(temporary, layout, tensors.__getitem__)
            temporary.replace(path)

    def read(self, name: str) -> Statistics:
        """The statistics of one input; the arrays are read from the file when they are used."""
        file = SafetensorsFile(self._path(name))
        return Statistics(**{key: file.read(key) for key in file.tensors})

    def _path(self, name: str) -> Path:
        return self._directory / f"{name}.safetensors"
