"""Computes the perplexity of a text, and the distance of an engine's predictions from those of a reference engine."""

from collections.abc import Callable
from dataclasses import dataclass
from math import exp
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.errors import ArgumentError, EngineError
from trtllm_lite.evaluation.default_text import default_text, default_text_name
from trtllm_lite.evaluation.distributions import Sums
from trtllm_lite.evaluation.kept_logits import KeptLogits
from trtllm_lite.evaluation.windows import encode, read_text, split
from trtllm_lite.runtime.sequence_runner import SequenceRunner
from trtllm_lite.runtime.values import check_positive

_LOGITS_BYTES = 64 << 20  # logits of one engine that are held at a time

Report = Callable[[str, int, int], None]


@dataclass(frozen=True)
class AgainstReference:
    """The comparison with a reference; ``perplexity`` is the reference's, ``kl_divergence`` is KL(reference || engine)
    in nats per token.

    ``perplexity_increase`` is relative: 0.01 for 1%. ``top1_agreement``: the share of tokens for which both find the
    same token likeliest.
    """

    perplexity: float
    perplexity_increase: float
    kl_divergence: float
    top1_agreement: float


@dataclass(frozen=True)
class Evaluation:
    """The result: ``num_tokens`` tokens were predicted, all but the first in each window of ``window`` tokens.

    ``dataset`` names the text.
    """

    dataset: str
    num_tokens: int
    num_windows: int
    window: int
    perplexity: float
    reference: AgainstReference | None


def evaluate(
    engine_dir: Path,
    dataset: Path | None = None,
    *,
    reference_engine_dir: Path | None = None,
    kept_logits: Path | None = None,
    window: int | None = None,
    max_tokens: int | None = None,
    num_threads: int | None = None,
    progress: Report | None = None,
) -> Evaluation:
    """Let the engine predict every token of a text from the tokens before it in its window.

    ``dataset`` is a text file; None means :func:`default_text`.

    Windows are sequences of ``window`` tokens (None: as many as the engines take) that do not overlap; tokens after the
    last whole window are left out. Each begins with what the tokenizer puts before a prompt, and its first token is not
    predicted. At most ``max_tokens`` tokens of the text are read. Every engine can be evaluated; one that was built
    with gather_context_logits takes fewer steps, because others compute max_batch_size rows of logits in a step.

    If several engines are compared with one reference, the directory ``kept_logits`` keeps the reference's logits, so
    that they are computed only once.

    Raises ArgumentError (the text, or too little of it), EngineError (no tokenizer, or engines of different models),
    LimitError, DeviceError.
    """
    check_positive("window", window)
    check_positive("max_tokens", max_tokens)
    text = default_text() if dataset is None else read_text(dataset)
    engine = SequenceRunner(engine_dir, window, num_threads)
    others = (
        [] if reference_engine_dir is None else [_reference(reference_engine_dir, window, num_threads, kept_logits)]
    )
    prefix, tokens = encode(engine, text)
    for other in others:
        _check_same_model(engine, other, (prefix, tokens) == encode(other, text))
    length = min(runner.max_len for runner in (engine, *others))
    windows = split(prefix, tokens, length, max_tokens)
    sums = Sums()
    for done, row in enumerate(windows):
        _add_window(sums, engine, others, row)
        if progress is not None:
            progress("evaluate", done + 1, len(windows))
    name = default_text_name() if dataset is None else str(dataset)
    return _evaluation(name, sums, len(windows), length, bool(others))


def _reference(
    engine_dir: Path, window: int | None, num_threads: int | None, kept_logits: Path | None
) -> SequenceRunner:
    if kept_logits is None:
        return SequenceRunner(engine_dir, window, num_threads)
    return KeptLogits(kept_logits, engine_dir, window, num_threads)


def _add_window(sums: Sums, engine: SequenceRunner, others: list[SequenceRunner], row: NDArray[np.int32]) -> None:
    """Add the engines' predictions of one window. The logits after its last token predict nothing."""
    most = max(1, _LOGITS_BYTES // (4 * engine.manifest.model.vocab_size))
    for runner in (engine, *others):
        most = min(most, runner.max_logits, runner.manifest.limits.max_num_tokens)
    first = 0
    for logits, *references in zip(*(runner.logits(row[:-1], most) for runner in (engine, *others)), strict=True):
        end = first + len(logits)
        sums.add(logits, row[first + 1 : end + 1], *references)
        first = end


def _check_same_model(engine: SequenceRunner, reference: SequenceRunner, same_tokens: bool) -> None:
    sizes = [runner.manifest.model.vocab_size for runner in (engine, reference)]
    if sizes[0] != sizes[1] or not same_tokens:
        raise EngineError(
            f"the tokenizers of engine and reference differ (vocabularies of {sizes[0]} and {sizes[1]} tokens): their "
            "predictions can be compared only if both were built from one model"
        )


def _evaluation(dataset: str, sums: Sums, num_windows: int, window: int, has_reference: bool) -> Evaluation:
    nll, reference_nll = sums.nll / sums.num_tokens, sums.reference_nll / sums.num_tokens
    if not np.isfinite([nll, reference_nll, sums.kl]).all():
        raise ArgumentError("the engine's predictions of this text are not finite: its weights or scales are damaged")
    against = AgainstReference(
        perplexity=exp(reference_nll),
        perplexity_increase=exp(nll - reference_nll) - 1,
        kl_divergence=sums.kl / sums.num_tokens,
        top1_agreement=sums.agreed / sums.num_tokens,
    )
    return Evaluation(dataset, sums.num_tokens, num_windows, window, exp(nll), against if has_reference else None)
