"""Quantizes a checkpoint: calibrates if a scheme needs it, and writes the result or passes it on."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from trtllm_lite.builder import Checkpoint, open_checkpoint
from trtllm_lite.common.files import atomic_directory, require_space
from trtllm_lite.common.progress import Report
from trtllm_lite.common.scratch import scratch_directory
from trtllm_lite.common.vocabulary import AUTO, VISION_TOWER
from trtllm_lite.convert.sources.safetensors_file import TensorInfo, plan_layout, write_safetensors
from trtllm_lite.engine.format import CONFIG_FILE, TOKENIZER_FILES
from trtllm_lite.errors import BuildError, EngineError
from trtllm_lite.network.config import NETWORK_FILE, WEIGHTS_FILE
from trtllm_lite.network.dtypes import DTYPE_NAMES
from trtllm_lite.network.tensors import extents
from trtllm_lite.network.verifier import load_network
from trtllm_lite.quantize.calibration.statistics import Statistics, placeholder
from trtllm_lite.quantize.network import Recipe, inputs_to_observe, no_calibration, quantize_network
from trtllm_lite.quantize.schemes import Needs
from trtllm_lite.quantize.schemes.workpiece import Decision
from trtllm_lite.quantize.threads import in_order, workers_of
from trtllm_lite.workflows.calibration import Calibration, statistics_of
from trtllm_lite.workflows.device import Device


@dataclass(frozen=True)
class Quantization:
    """The ``checkpoint`` quantized by ``recipe``, with weights that are computed when they are read.

    ``decisions`` are those of the schemes; ``source`` is the unquantized checkpoint; ``device`` is the device of
    calibration, on which the loss of accuracy can be measured.
    """

    source: Checkpoint
    checkpoint: Checkpoint
    decisions: list[Decision]
    recipe: Recipe
    statistics: Callable[[str], Statistics]
    device: Device

    def only(self, names: Sequence[str]) -> "Quantization":
        """The same, but that only the products ``names`` are quantized."""
        return self._by(self.recipe.only(names))

    def keeping(self, names: Sequence[str]) -> "Quantization":
        """The same, but that the products ``names`` stay in full precision."""
        return self._by(self.recipe.keeping(names))

    def _by(self, recipe: Recipe) -> "Quantization":
        network, decisions = quantize_network(self.source.model, recipe, self.statistics)
        checkpoint = replace(self.source, model=network)
        return replace(self, checkpoint=checkpoint, decisions=decisions, recipe=recipe)


@contextmanager
def quantized(
    checkpoint: Checkpoint, recipe: Recipe, calibration: Calibration, report: Report
) -> Iterator[Quantization]:
    """Quantize ``checkpoint`` by ``recipe``, after calibration if a scheme needs it.

    The statistics from which weights are computed exist while the context lasts. Raises BuildError, ArgumentError (the
    calibration text), EngineError, OutputError.
    """
    inputs, needs = inputs_to_observe(checkpoint.model, recipe)
    calibration_for = f"needed for {recipe.qformats}" if needs > Needs.NOTHING else None
    checkpoint.kind.check(kv_cache_dtype=recipe.kv_cache_dtype, calibration=calibration_for)
    with ExitStack() as stack:
        statistics: Callable[[str], Statistics] = no_calibration
        if needs > Needs.NOTHING:
            uncalibrated(checkpoint, recipe)  # raises errors before the calibration, which takes long
            gram = needs == Needs.GRAM
            statistics = stack.enter_context(statistics_of(checkpoint, inputs, calibration, gram, report)).read
        network, decisions = quantize_network(checkpoint.model, recipe, statistics)
        result = replace(checkpoint, model=network)
        yield Quantization(checkpoint, result, decisions, recipe, statistics, calibration.device)


@contextmanager
def written(quantization: Quantization, report: Report) -> Iterator[Quantization]:
    """Write the weights of ``quantization`` to a temporary directory, so that they are computed only once."""
    with scratch_directory("quantized") as directory:
        _write(quantization.checkpoint, directory, report)
        yield replace(quantization, checkpoint=open_checkpoint(directory))


def is_calibrated(checkpoint: Checkpoint, recipe: Recipe) -> bool:
    """Whether ``recipe`` needs calibration, which may take minutes. Raises BuildError."""
    return inputs_to_observe(checkpoint.model, recipe)[1] > Needs.NOTHING


def uncalibrated(checkpoint: Checkpoint, recipe: Recipe) -> Checkpoint:
    """Quantize ``checkpoint`` by ``recipe`` with made-up statistics, for uses that read no weights."""
    network, _ = quantize_network(checkpoint.model, recipe, placeholder)
    return replace(checkpoint, model=network)


def decisions_of(checkpoint: Checkpoint, recipe: Recipe) -> list[Decision]:
    """The schemes' decisions for ``checkpoint``, independent of calibration. Raises BuildError."""
    return quantize_network(checkpoint.model, recipe, placeholder)[1]


def quantize_checkpoint(
    checkpoint_dir: Path,
    output_dir: Path,
    recipe: Recipe,
    calibration: Calibration,
    report: Report,
    notes: Mapping[str, str] | None = None,
) -> list[Decision]:
    """Write the checkpoint quantized by ``recipe`` to ``output_dir``, which appears whole or not at all.

    The result is an ordinary checkpoint: a standard ONNX network with QuantizeLinear and DequantizeLinear, and weights.
    ``notes`` become properties of the network's metadata. Returns the schemes' decisions. Raises the errors of
    :func:`quantized`.
    """
    checkpoint = open_checkpoint(checkpoint_dir)
    if recipe.changes_nothing:
        raise BuildError(
            "qformat is full_prec, and nothing overrides it: there is nothing to quantize; pass a qformat, or a "
            "kv_cache_dtype"
        )
    _check_keys(checkpoint, recipe)
    if not recipe.changes_products and not recipe.attentions(checkpoint.model.graph):
        what = "keys and values" if recipe.rounds_keys else "values"
        keys = "" if recipe.rounds_keys else " (with key_cache_dtype, if it rounds keys, too)"
        raise BuildError(
            f"{checkpoint_dir} stores {what} as {recipe.kv_cache_dtype} already, and nothing else is to be quantized: "
            f"build it as it is{keys}, or quantize the checkpoint that it was made of"
        )
    with quantized(checkpoint, recipe, calibration, report) as result:
        parts = (VISION_TOWER,)
        with atomic_directory(Path(output_dir), CONFIG_FILE, optional=TOKENIZER_FILES, parts=parts) as directory:
            result.checkpoint.model.metadata_props.update(notes or {})
            _write(result.checkpoint, directory, report)
            load_network(directory)
        return result.decisions


def _check_keys(checkpoint: Checkpoint, recipe: Recipe) -> None:
    """Raise BuildError if keys are to have another type than the network's own, which a checkpoint leaves to them."""
    own = checkpoint.config.dtype
    if recipe.key_cache_dtype not in (AUTO, own):
        raise BuildError(
            f"key_cache_dtype is {recipe.key_cache_dtype}, and a quantized checkpoint leaves keys in its own type: "
            f"pass key_cache_dtype {own} here, and another to `trtllm-lite build`"
        )


def _write(checkpoint: Checkpoint, directory: Path, report: Report) -> None:
    """Write the files of a checkpoint whose weights are computed; they are read from the files afterwards."""
    if checkpoint.path is None:
        raise EngineError("a model config has no weights to quantize: pass a checkpoint")
    _write_network(checkpoint.model, directory, report)
    for source in (checkpoint.path / CONFIG_FILE, *checkpoint.companion_files()):
        (directory / source.name).write_bytes(source.read_bytes())
    if checkpoint.tower() is not None:
        shutil.copytree(checkpoint.path / VISION_TOWER, directory / VISION_TOWER)


def _write_network(network: ir.Model, directory: Path, report: Report) -> None:
    """Write network.onnx, and weights.safetensors with all tensors that are computed when they are read."""
    lazy = {name: value for name, value in network.graph.initializers.items() if _is_weight(value)}
    tensors = {name: value.const_value for name, value in lazy.items() if value.const_value is not None}
    infos = {name: TensorInfo(DTYPE_NAMES[tensor.dtype], extents(tensor)) for name, tensor in tensors.items()}
    layout = plan_layout(infos)
    require_space(directory, layout.num_bytes)
    computed = enumerate(in_order((tensors[name].numpy for name in layout.order), workers_of(network.graph)), 1)

    def values(name: str):  # type: ignore[no-untyped-def]
        del name  # tensors are requested in the order of the layout
        done, array = next(computed)
        report("quantize", done, len(tensors))
        return array

    write_safetensors(directory / WEIGHTS_FILE, layout, values)
    for name, info in infos.items():
        lazy[name].const_value = ir.ExternalTensor(
            WEIGHTS_FILE,
            layout.offsets[name],
            info.num_bytes,
            tensors[name].dtype,
            shape=ir.Shape(info.shape),
            name=name,
            base_dir=directory,
        )
    ir.save(network, directory / NETWORK_FILE)


def _is_weight(value: ir.Value) -> bool:
    return isinstance(value.const_value, ir.LazyTensor)
