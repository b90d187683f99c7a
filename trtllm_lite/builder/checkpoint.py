"""Opens a checkpoint directory: its configuration, its network, and the files that travel with an engine."""

from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir

from trtllm_lite.common.vocabulary import IMAGE_PROCESSOR_FILE, VISION_TOWER
from trtllm_lite.engine.format import CONFIG_FILE, ENGINE_FILE, TOKENIZER_FILES
from trtllm_lite.errors import EngineError
from trtllm_lite.network.config import NETWORK_FILE, ModelConfig
from trtllm_lite.network.module_kinds import ModuleKind, module_kind
from trtllm_lite.network.tensors import absent, extents
from trtllm_lite.network.verifier import load_network


@dataclass(frozen=True)
class Checkpoint:
    """A checked checkpoint; the weights of ``model`` stay on disk until they are evaluated.

    Without a ``path`` the checkpoint is only the shape of a model, and has no weights.
    """

    path: Path | None
    config: ModelConfig
    model: ir.Model

    @property
    def kind(self) -> ModuleKind:
        """The kind of module that the network is."""
        return module_kind(self.model.graph)

    def companion_files(self) -> list[Path]:
        """Return the files that travel with an engine: those of a tokenizer, or of a vision tower's processor."""
        if self.path is None:
            return []
        names = [*(TOKENIZER_FILES if self.config.tokenizer else ())]
        names += [IMAGE_PROCESSOR_FILE] if self.kind.name == VISION_TOWER else []
        return [self.path / name for name in names]

    def tower(self) -> "Checkpoint | None":
        """The vision tower beside a decoder, if there is one. Raises EngineError if it is damaged."""
        directory = None if self.path is None else self.path / VISION_TOWER
        return open_checkpoint(directory) if directory is not None and (directory / NETWORK_FILE).is_file() else None


def open_checkpoint(path: Path) -> Checkpoint:
    """Read ``path`` without reading weights.

    Raises EngineError if ``path`` is no checkpoint, or if it is incomplete, damaged, hostile, or of a newer version.
    """
    path = Path(path)
    try:
        _check_directory(path)
        _check_present(path, (NETWORK_FILE, CONFIG_FILE))
        return _open(path)
    except OSError as error:
        raise EngineError(
            f"cannot read {error.filename}: {error.strerror}: check the file and its permissions"
        ) from error


def checkpoint_of_shape(config: ModelConfig, network: ir.Model) -> Checkpoint:
    """Return the checkpoint of a network whose external weights do not exist."""
    proto = ir.to_proto(network)
    model = ir.from_proto(onnx.shape_inference.infer_shapes(proto, strict_mode=True, data_prop=True))
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if isinstance(tensor, ir.ExternalTensor):
            value.const_value = absent(str(value.name), tensor.dtype, extents(tensor))
    return Checkpoint(None, config, model)


def _open(path: Path) -> Checkpoint:
    config = ModelConfig.from_dir(path)
    checkpoint = Checkpoint(path, config, load_network(path))
    _check_present(path, tuple(file.name for file in checkpoint.companion_files()))
    return checkpoint


def _check_directory(path: Path) -> None:
    if not path.is_dir():
        kind = "is a file" if path.exists() else "does not exist"
        raise EngineError(
            f"expected a checkpoint directory, but {path} {kind}: pass the output_dir of `trtllm-lite convert`"
        )
    if (path / ENGINE_FILE).exists():
        raise EngineError(f"{path} is an engine, expected a checkpoint: pass the output_dir of `trtllm-lite convert`")


def _check_present(path: Path, names: tuple[str, ...]) -> None:
    missing = [name for name in names if not (path / name).is_file()]
    if missing:
        raise EngineError(
            f"{path} is not a complete checkpoint: {', '.join(missing)} missing: convert the model again with "
            "`trtllm-lite convert`"
        )
