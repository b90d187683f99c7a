"""Router in numpy."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

SPARSE_MIXER = "sparse_mixer"


def reference(inputs: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
    """``(x [rows, K], weight [K, columns], correction, bias, factors) -> (ids and shares [rows, chosen], ...)``.

    The other results are scores, and the tally, which is that of the first rank, after this step alone.
    """
    x, weight, correction, bias, factors = inputs
    products, scoring = x.astype(np.float64) @ weight, attributes["scoring"]
    experts = weight.shape[1] - attributes["shared_gate"]
    logits = products[:, :experts] + (0 if bias is None else bias)
    by_logits = scoring.endswith("_of_chosen") or scoring == SPARSE_MIXER
    scores = logits if by_logits else _function(scoring)(logits)
    chosen_by = _masked(scores if correction is None else scores + correction, attributes)
    ids = _largest(chosen_by, attributes["top_k"])
    shares = shares_of(logits, ids, scoring, attributes["threshold"]) * attributes["scale"]
    if factors is not None:
        shares = shares * factors[ids]
    of_all = np.broadcast_to(experts + np.arange(attributes["num_shared"]), (len(x), attributes["num_shared"]))
    gates = _sigmoid(products[:, experts:]) if attributes["shared_gate"] else 1
    ids, shares = np.concatenate([ids, of_all], 1), np.concatenate([shares, np.broadcast_to(gates, of_all.shape)], 1)
    tally = _tally(ids, experts + attributes["num_shared"], attributes["local_experts"])
    products[:, :experts] = logits
    return ids.astype(np.int32), shares.astype(np.float32), products.astype(np.float32), tally


def _tally(ids: NDArray, experts: int, local: int) -> NDArray:
    """Choices of the first ``local`` experts; how many of these were chosen; one step; choices of the busiest rank."""
    choices = np.bincount(ids.reshape(-1), minlength=experts)
    of_ranks = np.add.reduceat(choices, np.arange(0, experts, local))
    return np.array([*choices[:local], np.count_nonzero(choices[:local]), 1, of_ranks.max()], np.int64)


def shares_of(logits: NDArray, ids: NDArray, scoring: str, threshold: float = 0.0) -> NDArray:
    """The shares [rows, top_k] of the chosen, by the scores [rows, experts] of all, before ``scale``."""
    if scoring == SPARSE_MIXER:
        return _mixed(logits, ids, threshold)
    function = _function(scoring)
    if scoring.endswith("_of_chosen"):
        return function(np.take_along_axis(logits, ids, axis=-1))
    shares = np.take_along_axis(function(logits), ids, axis=-1)
    if not scoring.startswith("normalized"):
        return shares
    return shares / (shares.sum(-1, keepdims=True) + (1e-20 if function is _sigmoid else 0))


def _mixed(logits: NDArray, ids: NDArray, threshold: float) -> NDArray:
    """The share of each choice, by a softmax over the experts that are left and not far from it."""
    left, shares = logits.copy(), np.empty(ids.shape)
    for number in range(ids.shape[1]):
        choice = ids[:, number : number + 1]
        score = np.take_along_axis(logits, choice, axis=-1)
        is_far = score - logits > threshold * np.maximum(abs(logits), score)
        softmax = _softmax(np.where(is_far, -np.inf, left))
        shares[:, number] = np.take_along_axis(softmax, choice, axis=-1)[:, 0]
        np.put_along_axis(left, choice, -np.inf, axis=-1)
    return shares


def _function(scoring: str) -> Any:
    return _sigmoid if "sigmoid" in scoring else _softmax


def _masked(scores: NDArray, attributes: Mapping[str, Any]) -> NDArray:
    """``scores``, with minus infinity for experts of groups that are left out."""
    num_groups = attributes["num_groups"]
    groups = scores.reshape(len(scores), num_groups, scores.shape[-1] // num_groups)
    totals = np.sort(groups, axis=-1)[..., -attributes["num_best"] :].sum(-1)
    is_kept = np.zeros(totals.shape, bool)
    np.put_along_axis(is_kept, _largest(totals, attributes["top_groups"]), True, axis=-1)
    return np.where(is_kept[..., None], groups, -np.inf).reshape(scores.shape)


def _largest(values: NDArray, count: int) -> NDArray:
    return np.argsort(-values, axis=-1, kind="stable")[:, :count]


def _softmax(scores: NDArray) -> NDArray:
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def _sigmoid(scores: NDArray) -> NDArray:
    return 1 / (1 + np.exp(-scores))
