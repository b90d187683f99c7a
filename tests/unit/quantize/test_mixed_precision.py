"""The choice of a scheme for each site under a budget, on made-up divergences."""

from pathlib import Path

import pytest

from trtllm_lite.errors import ArgumentError, BuildError
from trtllm_lite.quantize.mixed_precision import Candidate, Site, average_bits, choose
from trtllm_lite.workflows.mixed_precision import known_divergences


def site(path: str, *divergences: float, num_weights: int = 100) -> Site:
    """A site whose candidates have 16, 8 and 4 bits."""
    kinds = (("full_prec", 16), ("int8_wo", 8), ("int4_wo", 4))
    found = (Candidate(name, bits * num_weights, d) for (name, bits), d in zip(kinds, (0.0, *divergences), strict=True))
    return Site((path,), num_weights, tuple(found))


SITES = [site("a", 0.001, 0.5), site("b", 0.001, 0.02), site("c", 0.3, 0.4), site("d", 0.001, 0.002, num_weights=300)]


def names(budget: float) -> list[str]:
    choices = choose(SITES, budget)
    assert average_bits(choices) <= budget
    return [choice.candidate.qformat for choice in choices]


def test_a_site_is_named_by_its_block_and_products() -> None:
    assert (
        str(Site(("layers.0.attention.q_proj", "layers.0.attention.k_proj"), 1, ()))
        == "layers.0.attention.q_proj+k_proj"
    )
    assert str(Site(("lm_head",), 1, ())) == "lm_head"


def test_bits_go_where_they_take_away_most() -> None:
    """Steps go by gain per bit: a to 8 bits (0.125), c to 16 bits (0.033), b to 8 bits (0.005), then the rest."""
    assert names(4) == ["int4_wo"] * 4
    assert names(4.7) == ["int8_wo", "int4_wo", "int4_wo", "int4_wo"]
    assert names(6.7) == ["int8_wo", "int4_wo", "full_prec", "int4_wo"]
    assert names(7.4) == ["int8_wo", "int8_wo", "full_prec", "int4_wo"]
    assert names(16) == ["full_prec"] * 4


def test_a_step_that_does_not_fit_leaves_room_for_others() -> None:
    """c would gain most, but 16 bits for c add 2 bits to the average, and 8 bits add 0.67."""
    assert names(5.4) == ["int8_wo", "int4_wo", "int8_wo", "int4_wo"]


def test_reasons_say_what_a_step_was_worth() -> None:
    first, *others = choose(SITES, 4.7)
    assert first.reason == "4.00 bits more than int4_wo reduce the divergence by 0.499000"
    assert {choice.reason for choice in others} == {"the fewest bits; other sites gained more"}


def test_a_budget_below_the_fewest_bits() -> None:
    message = r"auto_quantize_bits is 3.5, and the formats take 4.000 bits for a weight at least.* raise auto_quantize"
    with pytest.raises(BuildError, match=message):
        choose(SITES, 3.5)


@pytest.mark.parametrize("content", ["", '{"key": "a', "[1]", '{"key": null}', "[" * 100_000, "\udcff"])
def test_damaged_divergences_are_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "sensitivities.json"
    assert known_divergences(file) == {}
    file.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(ArgumentError, match=r"sensitivities\.json is damaged: remove it"):
        known_divergences(file)
    file.write_text('{"key": "a", "layers.0.mlp int8_wo": 0.25}')
    assert known_divergences(file) == {"key": "a", "layers.0.mlp int8_wo": 0.25}
