"""Collects the metrics of one model."""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from trtllm_lite.runtime.session.experts import ExpertCounts
from trtllm_lite.runtime.session.request import FinishReason
from trtllm_lite.runtime.session.session import Session
from trtllm_lite.runtime.session.stats import TOKEN_GAP_BOUNDS, Speculation, Stats
from trtllm_lite.serve.metrics.families import Families
from trtllm_lite.serve.metrics.histogram import cumulated
from trtllm_lite.serve.metrics.sequences import SequenceCounts
from trtllm_lite.serve.reading import finish_reason

if TYPE_CHECKING:
    from trtllm_lite.serve.served_model import ServedModel

_REASONS: dict[FinishReason | None, str] = {**{reason: finish_reason(reason) for reason in FinishReason}, None: "error"}
_TRTLLM_REASONS = {reason: reason.word for reason in FinishReason}


def add_model(families: Families, model: "ServedModel") -> None:
    """Add the metrics of a model."""
    families.of(model.name)
    families.awake()
    session, stats = model.session, model.session.stats()
    _add_requests(families, session, stats)
    _add_cache(families, session, stats)
    _add_steps(families, session, stats)
    _add_experts(families, session.expert_counts())
    if stats.speculation.num_drafted:
        _add_speculation(families, stats.speculation)
    with model.counts:
        _add_ends(families, model.counts)
        _add_times(families, model.counts)
    add_rejections(families, model.num_rejected)
    text = "Choices of conversations without content or calls, often because thoughts did not end."
    for reason, count in model.empty_answers.items():
        families.counter("", text, count, trtllm="empty_answers", finished_reason=reason)
    for outcome, count in model.tool_parses.items():
        families.counter(
            "tool_call_parser_invocations", "Choices that were searched for calls.", count, outcome=outcome
        )


def _add_requests(families: Families, session: Session, stats: Stats) -> None:
    running, waiting = ([], []) if session.adapters is None else session.adapters.in_use()
    all_waiting = stats.num_waiting + len(waiting)
    families.gauge("num_requests_running", "Sequences in the batch.", stats.num_running, trtllm="num_requests_running")
    families.gauge("num_requests_waiting", "Sequences that wait.", all_waiting, trtllm="num_requests_waiting")
    text = "Sequences that wait for a place in the batch or the cache (capacity), or for an adapter (deferred)."
    families.gauge("num_requests_waiting_by_reason", text, stats.num_waiting, reason="capacity")
    if session.adapters is not None:
        families.gauge("num_requests_waiting_by_reason", text, len(waiting), reason="deferred")
        families.gauge(
            "lora_requests_info",
            "The time of this sample; its labels name the adapters of running and waiting requests.",
            time.time(),
            max_lora=str(session.adapters.max_loras),
            running_lora_adapters=",".join(running),
            waiting_lora_adapters=",".join(dict.fromkeys(waiting)),
        )


def _add_cache(families: Families, session: Session, stats: Stats) -> None:
    limits, used, most = session.limits, stats.num_used_blocks, stats.num_blocks
    share = used / max(most, 1)
    families.gauge("kv_cache_usage_perc", "Share of the KV cache in use, 0 to 1.", share, trtllm="kv_cache_utilization")
    families.gauge("gpu_cache_usage_perc", "vLLM's older name of kv_cache_usage_perc.", share)
    families.gauge(
        "cache_config_info",
        "How the KV cache is divided.",
        1,
        block_size=str(limits.tokens_per_block),
        num_gpu_blocks=str(limits.num_blocks),
        num_cpu_blocks=str(limits.num_host_blocks),
        cache_dtype=session.manifest.kv_cache.dtype,
    )
    families.gauge("", "Blocks of the KV cache.", most, trtllm="kv_cache_max_blocks")
    families.gauge("", "Blocks of the KV cache in use.", used, trtllm="kv_cache_used_blocks")
    families.gauge("", "Blocks of the KV cache that are free.", most - used, trtllm="kv_cache_free_blocks")
    families.gauge("", "Tokens of a block.", limits.tokens_per_block, trtllm="kv_cache_tokens_per_block")
    families.gauge(
        "", "Share of looked-up tokens found in the cache.", stats.prefix_hit_rate, trtllm="kv_cache_hit_rate"
    )
    families.counter("prefix_cache_queries", "Prompt tokens looked up in the KV cache.", stats.lookup_tokens)
    families.counter("prefix_cache_hits", "Looked-up tokens that the KV cache held.", stats.hit_tokens)
    of_groups = zip(session.manifest.kv_cache.groups, stats.reached_tokens, stats.host_tokens, strict=False)
    for group, reached, from_host in of_groups:
        text = "Looked-up tokens that a cache group held; a request is saved what all groups hold."
        families.counter("", text, reached, trtllm="kv_cache_group_hits", group=group.name)
        text = "Tokens that requests were saved and of which a cache group's content came back from host memory."
        families.counter("", text, from_host, trtllm="kv_cache_group_host_hits", group=group.name)


def _add_steps(families: Families, session: Session, stats: Stats) -> None:
    preemptions = stats.num_recompute_preemptions + stats.num_swap_preemptions
    families.counter("num_preemptions", "How often a sequence was put back to make room.", preemptions)
    generated, steps = stats.num_generated_tokens, stats.num_steps
    families.counter("generation_tokens", "Generated tokens.", generated, trtllm="generation_tokens")
    families.summary("iteration_tokens_total", "Tokens of a step.", steps, stats.num_scheduled_tokens)
    families.summary("", "Seconds of a step.", steps, stats.step_seconds, trtllm="iteration_latency_seconds")
    counts, seconds = session.pump.token_gaps()
    gaps = (cumulated(TOKEN_GAP_BOUNDS, counts), seconds)
    families.histogram("inter_token_latency_seconds", "Seconds between a sequence's deliveries of tokens.", gaps)
    families.histogram("time_per_output_token_seconds", "vLLM's older name of inter_token_latency_seconds.", gaps)


def _add_experts(families: Families, counts: Sequence[ExpertCounts]) -> None:
    """Add sums over layers, for ranks with some of the experts each; nothing for models without experts."""
    if not counts:
        return
    steps, busiest = (sum(getattr(layer, name) for layer in counts) for name in ("steps", "busiest_choices"))
    families.counter("", "Times that a layer's router has routed a step.", steps, trtllm="moe_routed_steps")
    choices = np.sum([layer.choices_by_rank for layer in counts], axis=0)
    read = np.sum([layer.experts_read for layer in counts], axis=0)
    for rank, (own, of_steps) in enumerate(zip(choices, read, strict=True)):
        text = "Experts that tokens have chosen, by the rank that has them."
        families.counter("", text, int(own), trtllm="moe_expert_choices", ep_rank=str(rank))
        text = "Experts of a rank that some token of a routed step has chosen."
        families.counter("", text, int(of_steps), trtllm="moe_experts_read", ep_rank=str(rank))
    text = "Choices of experts of the rank that was chosen most in a routed step."
    families.counter("", text, busiest, trtllm="moe_busiest_rank_choices")


def _add_speculation(families: Families, speculation: Speculation) -> None:
    drafted, accepted = sum(speculation.num_drafted), sum(speculation.num_accepted)
    families.counter("spec_decode_num_drafts", "How often tokens were drafted.", speculation.num_drafts)
    families.counter("spec_decode_num_draft_tokens", "Draft tokens.", drafted, trtllm="spec_decode_num_draft_tokens")
    families.counter(
        "spec_decode_num_accepted_tokens",
        "Draft tokens that were accepted.",
        accepted,
        trtllm="spec_decode_num_accepted_tokens",
    )
    for place, count in enumerate(speculation.num_accepted):
        families.counter(
            "spec_decode_num_accepted_tokens_per_pos",
            "Draft tokens that were accepted, by place.",
            count,
            position=str(place),
        )


def add_reasons(families: Families, reasons: Mapping[FinishReason | None, int]) -> None:
    """Add how many sequences have ended, by reason."""
    for reason, count in _merged(reasons, _REASONS).items():
        families.counter("request_success", "Sequences that ended.", count, finished_reason=reason)
    for reason, count in _merged(reasons, _TRTLLM_REASONS).items():
        families.counter(
            "", "Sequences that ended without error.", count, trtllm="request_success", finished_reason=reason
        )
    families.counter("", "Sequences that an error ended.", reasons[None], trtllm="request_error")


def add_rejections(families: Families, rejected: Mapping[str, int]) -> None:
    """Add how many requests were refused, by the queue that was full."""
    for reason, count in rejected.items():
        families.counter("admission_rejections", "Requests refused because of too many others.", count, reason=reason)


def _add_ends(families: Families, counts: SequenceCounts) -> None:
    add_reasons(families, counts.reasons)
    families.counter("prompt_tokens", "Tokens of prompts.", counts.num_prompt_tokens, trtllm="prompt_tokens")
    families.counter(
        "prompt_tokens_cached",
        "Tokens of prompts that the KV cache held.",
        counts.num_cached_tokens,
        trtllm="prompt_cached_tokens",
    )
    cached, computed = counts.num_cached_tokens, counts.num_prompt_tokens - counts.num_cached_tokens
    sources = {"local_compute": computed, "local_cache_hit": cached, "external_kv_transfer": 0}
    for source, count in sources.items():
        families.counter("prompt_tokens_by_source", "Tokens of prompts, by where they came from.", count, source=source)
    text = "Tokens of prompts that a KV cache held, by where it is."
    families.counter("prompt_tokens_cached_by_source", text, cached, source="device")
    text = "Tokens of a prompt that the KV cache did not hold."
    families.histogram("request_prefill_kv_computed_tokens", text, counts.computed_tokens.sample())
    families.histogram("request_prompt_tokens", "Tokens of a prompt.", counts.prompt_tokens.sample())
    generated = counts.generation_tokens.sample()
    families.histogram("request_generation_tokens", "Tokens generated for a sequence.", generated)
    # vLLM exposes the longest of a request's sequences here; nearly every request has one sequence.
    families.histogram("request_max_num_generation_tokens", "Tokens generated for a sequence.", generated)
    families.histogram("request_params_n", "Sequences that a prompt asked for.", counts.n.sample())
    families.histogram("request_params_max_tokens", "max_tokens, where it was given.", counts.max_tokens.sample())


def _add_times(families: Families, counts: SequenceCounts) -> None:
    named = {
        "time_to_first_token_seconds": ("Seconds until the first token.", counts.first_token),
        "e2e_request_latency_seconds": ("Seconds until the end.", counts.total),
        "request_queue_time_seconds": ("Seconds until a sequence joined the batch.", counts.queue),
        "request_inference_time_seconds": ("Seconds from joining the batch to the last token.", counts.inference),
        "request_prefill_time_seconds": ("Seconds from joining the batch to the first token.", counts.prefill),
        "request_decode_time_seconds": ("Seconds from the first token to the last.", counts.decode),
    }
    for name, (text, histogram) in named.items():
        families.histogram(name, text, histogram.sample(), trtllm=name)
    families.histogram(
        "request_time_per_output_token_seconds",
        "Mean seconds per token of a sequence, after its first token.",
        counts.per_token.sample(),
        trtllm="time_per_output_token_seconds",
    )


def _merged(
    reasons: Mapping[FinishReason | None, int], words: Mapping[FinishReason, str] | Mapping[FinishReason | None, str]
) -> dict[str, int]:
    """Numbers of sequences by the words for their finish reasons."""
    merged = dict.fromkeys(words.values(), 0)
    for reason, word in words.items():
        merged[word] += reasons[reason]
    return merged
