"""Measures the accuracy of a quantized network beside the network that it was made from: both read the same text."""

from pathlib import Path

from trtllm_lite.builder import Checkpoint, build_engine
from trtllm_lite.common.progress import Report
from trtllm_lite.common.scratch import scratch_directory
from trtllm_lite.engine.manifest import Accuracy
from trtllm_lite.evaluation import Evaluation, evaluate
from trtllm_lite.workflows.device import Device, target_of
from trtllm_lite.workflows.quantize import Quantization

_WINDOW = 1024
_MAX_TOKENS = 50 * _WINDOW
_STEP_TOKENS = 512


def measure_accuracy(quantization: Quantization, report: Report) -> Accuracy:
    """Perplexity of the quantized network and of its source on the default text, and the divergence of the two.

    Both compute on the device of the calibration, whatever the target of the build. Raises BuildError if that device
    does not compute the network.
    """
    with scratch_directory("accuracy") as directory:
        result = Compared(quantization, directory).whole_text(quantization.checkpoint, report)
    assert result.reference is not None
    return Accuracy(
        dataset=result.dataset,
        num_tokens=result.num_tokens,
        perplexity=result.perplexity,
        reference_perplexity=result.reference.perplexity,
        kl_divergence=result.reference.kl_divergence,
        top1_agreement=result.reference.top1_agreement,
    )


class Compared:
    """Compares networks with the source of ``quantization`` on the default text; ``directory`` holds their engines."""

    def __init__(self, quantization: Quantization, directory: Path) -> None:
        self._source, self._device, self._directory = quantization.source, quantization.device, directory

    def whole_text(self, network: Checkpoint, report: Report) -> Evaluation:
        """The network beside its source."""
        reference, engine = self._reference(report), self._engine(network, report)
        return evaluate(engine, reference_engine_dir=reference, max_tokens=_MAX_TOKENS, progress=report)

    def perplexity(self, network: Checkpoint, report: Report) -> float:
        """The perplexity of the network alone, over the same text."""
        return evaluate(self._engine(network, report), max_tokens=_MAX_TOKENS, progress=report).perplexity

    def divergence(self, network: Checkpoint) -> float:
        """The KL divergence from the source over one window, in nats per token."""
        reference, engine = self._reference(_ignore), self._engine(network, _ignore)
        result = evaluate(engine, reference_engine_dir=reference, kept_logits=self._directory, max_tokens=_WINDOW)
        assert result.reference is not None
        return result.reference.kl_divergence

    def _reference(self, report: Report) -> Path:
        engine = self._directory / "reference"
        if not engine.exists():
            build_to_evaluate(self._source, self._device, engine, _WINDOW, report)
        return engine

    def _engine(self, network: Checkpoint, report: Report) -> Path:
        engine = self._directory / "quantized"
        build_to_evaluate(network, self._device, engine, _WINDOW, report)
        return engine


def build_to_evaluate(checkpoint: Checkpoint, device: Device, directory: Path, window: int, report: Report) -> None:
    """Build an engine for ``device`` with windows of ``window`` tokens, or of fewer if the model takes no more.

    Raises BuildError for encoders, which predict no tokens.
    """
    checkpoint.kind.check(accuracy="to be measured")
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
