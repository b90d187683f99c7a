"""Collects the metrics of one encoder."""

from typing import TYPE_CHECKING

from trtllm_lite.serve.metrics.families import Families

if TYPE_CHECKING:
    from trtllm_lite.serve.served_encoder import ServedEncoder


def add_encoder(families: Families, model: "ServedEncoder") -> None:
    """Add the metrics of an encoder."""
    families.of(model.name)
    families.awake()
    load = model.load()
    for name, text in (("running", "Texts in the current step."), ("waiting", "Texts that wait.")):
        found = load[f"num_requests_{name}"]
        families.gauge(f"num_requests_{name}", text, found, trtllm=f"num_requests_{name}")
    families.counter("prompt_tokens", "Tokens of texts.", model.num_tokens, trtllm="prompt_tokens")
    families.counter("request_success", "Texts that were embedded.", model.num_texts, finished_reason="stop")
    families.summary("iteration_tokens_total", "Tokens of a step.", model.num_steps, model.num_tokens)
    for reason, count in model.num_rejected.items():
        families.counter("admission_rejections", "Requests refused because of too many others.", count, reason=reason)
