"""Makes the event loop's options for drafting, and checks the engine of a draft model."""

from typing import Any

from trtllm_lite.common.printable import one_line
from trtllm_lite.engine.manifest import Limits, Manifest
from trtllm_lite.errors import ArgumentError
from trtllm_lite.runtime.session.config import SpeculativeConfig


def drafting_options(native: Any, config: SpeculativeConfig | None, limits: Limits) -> dict[str, Any]:
    """The arguments of ``_core.EventLoop`` about drafting, except the executor of a draft model.

    In every engine that takes drafts, grammars draft the tokens that they determine; ``limits`` are the engine's own.
    """
    if config is None:
        return {"max_draft_len": limits.max_draft_len}
    drafting = {"max_draft_len": config.num_speculative_tokens, "paces_drafts": config.enable_adaptive_verification}
    if config.method in _METHODS:
        drafting["drafting"] = _METHODS[config.method](native, config)
    return drafting


def check_method(config: SpeculativeConfig, draft: Manifest) -> None:
    """Raise ArgumentError if the draft engine is a head and a model was asked for, or the reverse.

    It also raises for a draft engine that takes adapters, because drafting does not use them.
    """
    found, method = "a model of its own", "draft_model"
    if draft.module.drafts:
        found, method = ("a head", "eagle3") if draft.model.family == "eagle3" else ("a layer of a model", "mtp")
    if config.method != method:
        raise ArgumentError(
            f"speculative_config has method {config.method}, and {one_line(str(config.model))} is the engine of "
            f"{found}: pass method {method}, or another engine"
        )
    if draft.lora is not None:
        raise ArgumentError(
            f"{one_line(str(config.model))} takes adapters, but drafting uses none: build the draft engine "
            "without --max_lora_rank; the engine that it drafts for may take adapters"
        )


def _ngram(native: Any, config: SpeculativeConfig) -> Any:
    return native.NgramSizes(config.prompt_lookup_min, config.prompt_lookup_max)


def _suffix(native: Any, config: SpeculativeConfig) -> Any:
    return native.SuffixOptions(
        max_cached_requests=config.suffix_decoding_max_cached_requests,
        max_spec_factor=config.suffix_decoding_max_spec_factor,
        min_token_prob=config.suffix_decoding_min_token_prob,
    )


def _synthetic(native: Any, config: SpeculativeConfig) -> Any:
    return native.SyntheticOptions(list(config.synthetic_acceptance_rates))


_METHODS = {"ngram": _ngram, "suffix": _suffix, "synthetic": _synthetic}
