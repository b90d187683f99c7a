"""Reads Hugging Face's config.json strictly: values are typed, and no key that may change the results stays unread."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from trtllm_lite.common.printable import one_line
from trtllm_lite.errors import ConvertError, shown

# These keys describe training, serving, bookkeeping or tokenization, never the forward pass at inference.
_NEUTRAL = """
    architectures model_type torch_dtype dtype transformers_version use_cache cache_implementation name_or_path
    initializer_range attention_dropout hidden_dropout dropout resid_pdrop embd_pdrop attn_pdrop
    hidden_dropout_prob attention_probs_dropout_prob gradient_checkpointing
    bos_token_id eos_token_id pad_token_id unk_token_id sep_token_id cls_token_id mask_token_id decoder_start_token_id
    output_attentions output_hidden_states output_scores return_dict return_dict_in_generate torchscript
    use_bfloat16 tf_legacy_loss pruned_heads id2label label2id problem_type finetuning_task task_specific_params
    tokenizer_class prefix chunk_size_feed_forward pretraining_tp language license auto_map
    max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty temperature top_k top_p
    typical_p repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids
    num_return_sequences forced_bos_token_id forced_eos_token_id remove_invalid_values suppress_tokens
    begin_suppress_tokens exponential_decay_length_penalty max_new_tokens model_max_length unsloth_version
    unsloth_fixed transformers.js_config
    output_router_logits router_aux_loss_coef router_jitter_noise
    is_llama_config max_sequence_length neftune_noise_alpha attn_implementation num_labels classifier_dropout
    output_past custom_pipelines num_steps
"""
NEUTRAL_KEYS = frozenset(_NEUTRAL.split())
_MAX_INTEGER = 2**31 - 1
_MIN_NUMBER, _MAX_NUMBER = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)


class ConfigFields:
    """Typed access to a config; problems are collected, and :meth:`finish` raises them all as one ConvertError.

    ``prefix`` starts the keys of a nested object in messages; ``neutral`` are keys that need not be read.
    """

    def __init__(self, config: dict[str, Any], prefix: str = "", neutral: frozenset[str] = NEUTRAL_KEYS) -> None:
        self._config = config
        self._prefix = prefix
        self._neutral = neutral
        self._read: set[str] = set()
        self.problems: list[str] = []

    def problem(self, key: str, text: str) -> None:
        """Record that ``key`` is wrong."""
        self.problems.append(one_line(f"{self._prefix}{key}: {text}"))

    def take(self, key: str) -> Any:
        """Return the raw value, None if absent or null; the key counts as read."""
        self._read.add(key)
        return self._config.get(key)

    def rename(self, names: Mapping[str, str]) -> None:
        """Rename the keys of ``names`` to the names that these map to; they are read under the new names afterwards."""
        for key, usual in names.items():
            value, other = self.take(key), self._config.get(usual)
            if value is not None and other is not None and other != value:
                self.problem(key, f"contradicts {usual}: {shown(value)} and {shown(other)}")
            elif value is not None:
                self._config = {**self._config, usual: value}

    def assume(self, key: str, value: Any) -> None:
        """Give ``key`` a value that follows from other keys; one that the config has already must be the same."""
        found = self._config.get(key)
        if found is not None and found != value:
            self.problem(key, f"expected {shown(value)}, as other keys say, found {shown(found)}")
        self._config = {**self._config, key: value}

    def same_for_all(self, key: str, layers: Any) -> None:
        """Replace the list ``key`` of one value for each of the ``layers`` by that value, which must be the same."""
        values = self._config.get(key)
        if not isinstance(values, list):
            return
        if not values or len(values) != layers or any(value != values[0] for value in values):
            self.problem(key, f"expected {shown(layers)} times the same value, found {shown(values)}")
        self._config = {**self._config, key: values[0] if values else None}

    def integers_by_layer(self, key: str, layers: Any) -> list[int]:
        """The positive integers of the list ``key``, one for each of the ``layers``, of which it keeps the largest.

        One integer, for all layers, gives an empty list.
        """
        values = self._config.get(key)
        if not isinstance(values, list):
            return []
        if not values or len(values) != layers or not all(type(x) is int and 1 <= x <= _MAX_INTEGER for x in values):
            expected = f"expected {shown(layers)} integers in 1..{_MAX_INTEGER}"
            self.problem(key, f"{expected}, found {shown(values)}")
            values = [1]
        self._config = {**self._config, key: max(values)}
        return values

    def integer(self, key: str, default: int | None = None, minimum: int = 1, maximum: int = _MAX_INTEGER) -> int:
        """The integer ``key``, positive unless ``minimum`` says otherwise; without ``default`` the key is required."""
        value = self.take(key)
        if value is None and default is not None:
            return default
        if type(value) is not int or not minimum <= value <= maximum:
            self.problem(key, f"expected an integer in {minimum}..{maximum}, found {shown(value)}")
            return default or 1
        return value

    def nullable_integer(self, key: str, default: int) -> int | None:
        """Return a positive integer or null; an absent key, unlike null, has the ``default``."""
        if key in self._config and self._config[key] is None:
            self._read.add(key)
            return None
        return self.integer(key, default)

    def number(self, key: str, default: float, *, allows_zero: bool = False) -> float:
        """Return a positive number (or 0, if allowed) within the range of float32, in which networks compute."""
        value = self.take(key)
        if value is None:
            return default
        if allows_zero and value == 0 and not isinstance(value, bool):
            return 0.0
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            self.problem(key, f"expected a positive number, found {shown(value)}")
            return default
        if not _MIN_NUMBER <= value <= _MAX_NUMBER:
            self.problem(key, f"expected a number from {_MIN_NUMBER:.3g} to {_MAX_NUMBER:.3g}, which float32 can hold")
            return default
        return float(value)

    def nullable_number(self, key: str, default: float | None) -> float | None:
        """Return a positive number or null; an absent key, unlike null, has the ``default``."""
        if default is None or (key in self._config and self._config[key] is None):
            return None if self.take(key) is None else self.number(key, 1.0)
        return self.number(key, default)

    def flag(self, key: str, default: bool = False) -> bool:
        """Return the boolean ``key``."""
        value = self.take(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.problem(key, f"expected true or false, found {shown(value)}")
            return default
        return value

    def expect(self, key: str, *allowed: Any) -> None:
        """Record a problem unless ``key`` is absent, null or one of ``allowed``, the values that are supported."""
        value = self.take(key)
        if value is not None and value not in allowed:
            options = " or ".join(map(shown, allowed))
            self.problem(key, f"expected {options}, found {shown(value)}, which is not supported")

    def expect_neutral(self, key: str, *allowed: Any) -> None:
        """Record a problem unless ``key`` is absent, switched off, or has one of ``allowed``, which change nothing.

        Token ids never count as switched off, not even 0.
        """
        value = self.take(key)
        is_on = value is not None if key.endswith("_token_id") else bool(value)
        if is_on and (isinstance(value, bool), value) not in [(isinstance(other, bool), other) for other in allowed]:
            only = f"expected {' or '.join(map(shown, allowed))}; " if allowed else ""
            self.problem(key, f"{shown(value)} is not supported; {only}to go without it, pass {self._ignored(key)}")

    def unread(self) -> list[str]:
        """Return the keys that were not read, are not neutral, and have a value that switches something on."""
        keys = sorted(set(self._config) - self._read - self._neutral)
        # null, false, 0 and empty values switch a feature off
        return [key for key in keys if self._config[key] and not key.startswith("_")]

    def check_unread(self, remedy: str = "") -> None:
        """Record every key of :meth:`unread`; the usual remedy is to ignore it."""
        for key in self.unread():
            ignore = f"if you know that it does not, pass {self._ignored(key)}"
            text = f"{shown(self._config[key])} is not mapped and might change the results; {remedy or ignore}"
            self.problem(key, text)

    def _ignored(self, key: str) -> str:
        return f"--ignore_config_keys {self._prefix}{key} (ignore_config_keys of LLM)"

    def finish(self) -> None:
        """Raise ConvertError with every problem so far and every unread key."""
        self.check_unread()
        if self.problems:
            raise ConvertError("the model's config cannot be mapped:\n  " + "\n  ".join(self.problems))
