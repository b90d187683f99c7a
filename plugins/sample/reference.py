"""Sample in numpy, with plain sorts: the draw in float64, and what edits do to a logit in float32, as on the host."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from trtllm_lite.request_fields.draws import NUMBERS

from .records import BANNED, LARGEST, LOGPROBS, NOT_SEEN, STOP, TOKEN_MASK, record

Numbers: TypeAlias = Mapping[str, Any]

_MASK = 0xFFFFFFFF
_GREEDY: Numbers = {name: number.neutral for name, number in NUMBERS.items()} | {"temperature": 0.0}


def philox(counter: tuple[int, ...], key: tuple[int, int]) -> list[int]:
    """Philox4x32-10 (Salmon et al., SC11, section 4.3)."""
    words = list(counter)
    for number in range(10):
        low, high = (key[0] + number * 0x9E3779B9) & _MASK, (key[1] + number * 0xBB67AE85) & _MASK
        first, second = 0xD2511F53 * words[0], 0xCD9E8D57 * words[2]
        words = [second >> 32 ^ words[1] ^ low, second & _MASK, first >> 32 ^ words[3] ^ high, first & _MASK]
    return words


def uniform(seed: tuple[int, int], token_index: int, sequence_index: int) -> float:
    """The number in [0, 1) with which a sequence draws its token; ``seed`` has the low and the high word."""
    words = philox((token_index, 0, sequence_index, 0), seed)
    return ((words[1] << 32 | words[0]) >> 11) * 2.0**-53


def kept(row: np.ndarray, numbers: Numbers) -> np.ndarray:
    """Weights [vocab] of the tokens in the draw, float64, 0 for the others; the largest is 1. ``row`` is float32."""
    scaled = row / np.float32(numbers["temperature"])
    top_k, top_p = int(numbers["top_k"]), float(np.float32(numbers["top_p"]))
    weights = np.exp((scaled - np.max(scaled)).astype(np.float64))
    if numbers["top_n_sigma"] > 0:  # Tang et al. 2024: this many standard deviations below the largest logit
        sigma = np.std(row[np.isfinite(row)].astype(np.float64))
        least = np.float32(np.max(row) - float(np.float32(numbers["top_n_sigma"])) * sigma)
        weights[scaled < least / np.float32(numbers["temperature"])] = 0
    order = np.argsort(-scaled, kind="stable")  # among equal logits, the lowest id comes first
    if 0 < top_k < len(row):
        weights[scaled < scaled[order[top_k - 1]]] = 0
    if top_p < 1:
        before = weights[order].cumsum() - weights[order]
        weights[order[before >= weights.sum() * top_p]] = 0
        weights[order[0]] = 1
    weights[weights < float(np.float32(numbers["min_p"]))] = 0
    return weights


def draw(row: np.ndarray, numbers: Numbers, number: float) -> int:
    """The token for the random ``number``, or -1; ``numbers`` are those of requests, by name."""
    temperature = np.float32(numbers["temperature"])
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = row if temperature == 0 else row / temperature
    if np.isnan(row).any() or np.isposinf(row).any() or np.isinf(np.max(scaled)):
        return -1
    if temperature == 0:
        return int(np.argmax(row))
    cumulative = kept(row, numbers).cumsum()
    return int((cumulative > number * cumulative[-1]).argmax())


def _changed(logit: np.float32, slot: np.void, edit: np.void, num_generated: int) -> np.float32:
    """A logit after bias, penalties and bans, each rounded to float32."""
    if edit["token"] & BANNED or (edit["token"] & STOP and num_generated < slot["min_tokens"]):
        return np.float32(-np.inf)
    logit = logit + edit["bias"]
    if edit["num_generated"] == NOT_SEEN:
        return logit
    logit = logit * slot["repetition_penalty"] if logit < 0 else logit / slot["repetition_penalty"]
    if edit["num_generated"] == 0:
        return logit
    return logit - (slot["presence_penalty"] + slot["frequency_penalty"] * np.float32(edit["num_generated"]))


def _describe(row: np.ndarray, token: int, num_top: int) -> np.ndarray:
    """The log-probabilities that the model's own logits give ``token`` and the ``num_top`` most likely tokens."""
    found = np.zeros((), LOGPROBS)
    wide = row.astype(np.float64)
    logprobs = wide - np.max(wide) - np.log(np.exp(wide - np.max(wide)).sum())
    top = np.argsort(-wide, kind="stable")[:num_top]
    top = top[np.isfinite(wide[top])]
    found["logprob"], found["rank"] = logprobs[token], 1 + (row > row[token]).sum()
    found["tokens"] = -1
    found["tokens"][: len(top)], found["logprobs"][: len(top)] = top, logprobs[top]
    return found


def _count(slot: np.void, edits: np.ndarray, token: int) -> None:
    """Count a drawn token among the edits, while there is room."""
    number = int(slot["num_edits"])
    known = np.flatnonzero(edits["token"][:number] & TOKEN_MASK == token)
    if len(known):
        edits["num_generated"][known] = max(int(edits["num_generated"][known[0]]), 0) + 1
    elif number < len(edits):
        edits[number] = (token, 1, 0, 0)
        slot["num_edits"] = number + 1


def allowed(mask: np.ndarray, vocab: int) -> np.ndarray:
    """bool[vocab]: which tokens a mask int32[mask_words] allows."""
    bits = np.unpackbits(np.ascontiguousarray(mask).view(np.uint8), bitorder="little")
    return bits[:vocab].astype(bool)


def _sample(
    row: np.ndarray, slot: np.void, edits: np.ndarray, counter: int, mask: np.ndarray | None
) -> tuple[int, np.ndarray]:
    """The token of a row, or -1, and its log-probabilities; the token is counted among ``edits``."""
    nothing, likeliest = np.zeros((), LOGPROBS), draw(row, _GREEDY, 0)
    if likeliest < 0:
        return likeliest, nothing
    edited = row.copy() if mask is None else np.where(allowed(mask, len(row)), row, np.float32(-np.inf))
    if counter == LARGEST:
        return draw(edited, _GREEDY, 0), nothing
    for edit in edits[: slot["num_edits"]]:
        token = edit["token"] & TOKEN_MASK
        edited[token] = _changed(edited[token], slot, edit, counter)
    number = uniform((int(slot["seed"][0]), int(slot["seed"][1])), counter, int(slot["sequence_index"]))
    token = draw(edited, {name: slot[name] for name in NUMBERS}, number)
    if token < 0:
        return token, nothing
    if slot["counts_tokens"]:
        _count(slot, edits, token)
    return token, _describe(row, token, slot["num_logprobs"] - 1) if slot["num_logprobs"] else nothing


def reference(inputs: Sequence[Any], attributes: Mapping[str, int]) -> tuple[np.ndarray, ...]:
    """Inputs as in ``schema.toml`` -> ``(tokens, logprobs, last_tokens_out, sampling_slots_out)``; inputs stay.

    The field ``raw`` of the edits, which is the kernel's own, and log-probabilities that nobody asks for are 0; tokens
    of rows after a draft that is not drawn are -1.
    """
    logits, sample_slots, sample_counter, sample_drafts, sample_masks, last_tokens, sampling_slots, token_masks = inputs
    last_tokens, sampling_slots = last_tokens.copy(), np.ascontiguousarray(sampling_slots).copy()
    records = sampling_slots.view(record(attributes["max_edits"]))[:, 0]
    tokens, logprobs = np.full(len(logits), -1, np.int32), np.zeros(len(logits), LOGPROBS)
    for r, number in enumerate(sample_slots):
        if number < 0:
            continue
        slot, edits = records[number]["slot"], records[number]["edits"]
        edits["raw"] = 0
        counter = int(sample_counter[r])
        while True:
            mask = token_masks[sample_masks[r]] if sample_masks[r] >= 0 else None
            tokens[r], logprobs[r] = _sample(logits[r], slot, edits, counter, mask)
            if tokens[r] >= 0:
                last_tokens[number] = ~tokens[r] if ~tokens[r] in slot["stops"] else tokens[r]
            if tokens[r] < 0 or tokens[r] != sample_drafts[r]:
                break
            r, counter = r + 1, counter if counter == LARGEST else counter + 1
    return tokens, logprobs.view(np.int32).reshape(len(logits), -1), last_tokens, sampling_slots
