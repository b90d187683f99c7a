"""Says what a build measured of recurrent layers."""

from collections.abc import Sequence

from trtllm_lite.engine.manifest import StateForms, StateRounding


def state_facts(rounding: StateRounding | None, forms: Sequence[StateForms]) -> dict[str, str]:
    """The type of the matrices and what types change, and how far apart the forms of each operator are, by subject."""
    facts = {} if rounding is None else {"dtype": rounding.dtype}
    if rounding is not None and rounding.changes:
        changes = ", ".join(f"{dtype} by {change:.1e}" for dtype, change in rounding.changes.items())
        facts["change of results"] = f"{changes} after {rounding.num_tokens:,} tokens, in {_sites(rounding.sites)}"
    for form in forms:
        differences = ", ".join(f"{name} {difference:.1e}" for name, difference in form.differences.items())
        of_layers = f"in {_sites(form.sites)} of {form.num_layers}"
        facts[f"forms of {form.operator}"] = (
            f"{differences} off from {form.num_tokens:,} tokens in one step, {of_layers}"
        )
    return facts


def describe_states(rounding: StateRounding | None, forms: Sequence[StateForms]) -> list[str]:
    """The same in lines, shorter."""
    lines = [] if rounding is None else [f"matrices in {rounding.dtype}"]
    if rounding is not None and rounding.changes:
        changes = ", ".join(f"by {change:.1e} in {dtype}" for dtype, change in rounding.changes.items())
        lines[0] += f"; results change {changes}"
    if forms:
        largest = max(form.largest for form in forms)
        lines.append(f"all forms of {', '.join(form.operator for form in forms)} agree within {largest:.1e}")
    return lines


def _sites(sites: Sequence[str]) -> str:
    return ", ".join(sites)
