"""Collects the metrics of one encoder, under the names that decoders have for what means the same."""

from typing import TYPE_CHECKING

from trtllm_lite.serve.metrics.families import Families
from trtllm_lite.serve.metrics.model_metrics import add_reasons, add_rejections
from trtllm_lite.serve.metrics.texts import TextCounts

if TYPE_CHECKING:
    from trtllm_lite.serve.served_encoder import ServedEncoder


def add_encoder(families: Families, model: "ServedEncoder") -> None:
    """Add the metrics of an encoder. Each text is a sequence."""
    families.of(model.name)
    families.awake()
    stats = model.embedder.stats()
    for name, text, found in (
        ("running", "Sequences in the batch.", stats.num_running),
        ("waiting", "Sequences that wait.", stats.num_waiting),
    ):
        families.gauge(f"num_requests_{name}", text, found, trtllm=f"num_requests_{name}")
    families.summary("iteration_tokens_total", "Tokens of a step.", stats.num_steps, stats.num_scheduled_tokens)
    families.summary("", "Seconds of a step.", stats.num_steps, stats.step_seconds, trtllm="iteration_latency_seconds")
    with model.counts:
        _add_ends(families, model.counts)
    add_rejections(families, model.num_rejected)


def _add_ends(families: Families, counts: TextCounts) -> None:
    add_reasons(families, counts.reasons)
    families.counter("prompt_tokens", "Tokens of prompts.", counts.num_prompt_tokens, trtllm="prompt_tokens")
    families.histogram("request_prompt_tokens", "Tokens of a prompt.", counts.prompt_tokens.sample())
    named = {
        "e2e_request_latency_seconds": ("Seconds until the end.", counts.total),
        "request_queue_time_seconds": ("Seconds until a sequence joined the batch.", counts.queue),
        "request_inference_time_seconds": ("Seconds from joining the batch to the last token.", counts.inference),
    }
    for name, (text, histogram) in named.items():
        families.histogram(name, text, histogram.sample(), trtllm=name)
