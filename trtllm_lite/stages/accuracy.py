"""Measures the accuracy of a quantized network beside the network that it was made from: both read the same text."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trtllm_lite.builder import Checkpoint, build_engine
from trtllm_lite.common.progress import Report
from trtllm_lite.common.scratch import scratch_directory
from trtllm_lite.engine.manifest import Accuracy
from trtllm_lite.errors import BuildError
from trtllm_lite.evaluation import Evaluation, evaluate
from trtllm_lite.network.contract import is_encoder
from trtllm_lite.quantize.products import find_products
from trtllm_lite.quantize.schemes import FULL_PRECISION
from trtllm_lite.stages.device import Device, target_of
from trtllm_lite.stages.quantize import Quantization

_WINDOW = 1024
_MAX_TOKENS = 50 * _WINDOW
_STEP_TOKENS = 512
_MAX_NAMED = 5


def measure_accuracy(quantization: Quantization, report: Report) -> Accuracy:
    """Perplexity of the quantized network and of its source on the default text, and the divergence of the two.

    Both compute on the device of the calibration, whatever the target of the build. Raises BuildError if that device
    does not compute the network.
    """
    with _reference_engine(quantization, report) as (directory, engine):
        result = _compare(quantization.checkpoint, quantization.device, directory, engine, _MAX_TOKENS, report)
    assert result.reference is not None
    return Accuracy(
        dataset=result.dataset,
        num_tokens=result.num_tokens,
        perplexity=result.perplexity,
        reference_perplexity=result.reference.perplexity,
        kl_divergence=result.reference.kl_divergence,
        top1_agreement=result.reference.top1_agreement,
    )


def check_accuracy(accuracy: Accuracy, limit: float, quantization: Quantization, report: Report) -> None:
    """Raise BuildError if perplexity rose by more than ``limit`` percent; the message names the layers that hurt most.

    To find them, each layer is quantized alone, and one window of the text is read.
    """
    loss = 100 * (accuracy.perplexity / accuracy.reference_perplexity - 1)
    if loss <= limit:
        return
    raise BuildError(
        f"perplexity rises by {loss:.2f}%, from {accuracy.reference_perplexity:.4f} to {accuracy.perplexity:.4f} over "
        f"{accuracy.num_tokens:,} tokens, and max_accuracy_loss is {limit:g}%. {_advice(quantization, report)}, or "
        "raise the limit"
    )


def _advice(quantization: Quantization, report: Report) -> str:
    """The remedy; if products are quantized, it names the layers whose products hurt most."""
    if not quantization.recipe.changes_products:
        return "Only keys and values are quantized: choose another kv_cache_dtype"
    hurt = _sensitivities(quantization, report)
    named = ", ".join(f"{layer} ({divergence:.5f})" for layer, divergence in hurt[:_MAX_NAMED])
    return (
        f"Layers that hurt most, with the KL divergence that the products of each cause alone: {named}. Keep these in "
        f"full precision (--quantize_override '{hurt[0][0]}.*={FULL_PRECISION}'), choose another qformat"
    )


def _sensitivities(quantization: Quantization, report: Report) -> list[tuple[str, float]]:
    """Layers and the KL divergence that each causes alone, the largest first."""
    layers = _layers(quantization)
    found = []
    with _reference_engine(quantization, _ignore) as (directory, engine):
        for done, layer in enumerate(layers):
            alone = quantization.of_layer(layer)
            result = _compare(alone, quantization.device, directory, engine, _WINDOW, _ignore, kept_logits=directory)
            assert result.reference is not None
            found.append((layer, result.reference.kl_divergence))
            report("find what hurts", done + 1, len(layers))
    return sorted(found, key=lambda entry: -entry[1])


def _layers(quantization: Quantization) -> list[str]:
    """Paths of the decoder's layers, and of products outside them, in which something is quantized."""
    products = quantization.recipe.choose(find_products(quantization.source.model.graph))
    return list(dict.fromkeys(".".join(product.name.split(".")[:2]) for product in products))


@contextmanager
def _reference_engine(quantization: Quantization, report: Report) -> Iterator[tuple[Path, Path]]:
    """A directory for engines, with the engine of the unquantized source in it."""
    with scratch_directory("accuracy") as directory:
        engine = directory / "reference"
        build_to_evaluate(quantization.source, quantization.device, engine, _WINDOW, report)
        yield directory, engine


def _compare(
    quantized: Checkpoint,
    device: Device,
    directory: Path,
    reference: Path,
    max_tokens: int,
    report: Report,
    kept_logits: Path | None = None,
) -> Evaluation:
    engine = directory / "quantized"
    build_to_evaluate(quantized, device, engine, _WINDOW, report)
    return evaluate(
        engine, reference_engine_dir=reference, kept_logits=kept_logits, max_tokens=max_tokens, progress=report
    )


def build_to_evaluate(checkpoint: Checkpoint, device: Device, directory: Path, window: int, report: Report) -> None:
    """Build an engine for ``device`` with windows of ``window`` tokens, or of fewer if the model takes no more.

    Raises BuildError for encoders, which predict no tokens.
    """
    if is_encoder(checkpoint.model.graph):
        raise BuildError(
            "accuracy is measured by the tokens that a model predicts, and an encoder predicts none: leave "
            "max_accuracy_loss out, or name a qformat instead of autoq_format"
        )
    window = min(window, checkpoint.config.max_position_embeddings)
    build_engine(
        checkpoint,
        directory,
        target=target_of(device),
        progress=report,
        max_batch_size=1,
        max_input_len=window,
        max_seq_len=window,
        max_num_tokens=min(window, _STEP_TOKENS),
        gather_context_logits=True,
    )


def _ignore(stage: str, done: int, total: int) -> None:
    del stage, done, total
