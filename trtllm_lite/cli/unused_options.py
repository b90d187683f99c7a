"""Refuses options of quantization and calibration that would have no effect."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

if TYPE_CHECKING:
    from trtllm_lite.quantize.network import Recipe
    from trtllm_lite.quantize.schemes import Scheme


def check_recipe_options(recipes: "Sequence[Recipe]") -> None:
    """Raise click.UsageError if an option configures a kind of quantization that none of ``recipes`` uses."""
    from trtllm_lite.quantize.schemes import FULL_PRECISION

    if not any(scheme.in_groups for recipe in recipes for scheme in recipe.schemes):
        grouped = _names(lambda scheme: scheme.in_groups)
        _refuse(["group_size"], f"{_described(recipes)} stores no weights in groups", f"pass a qformat of {grouped}")
    if all(recipe.qformat == FULL_PRECISION for recipe in recipes):
        _refuse(["quantize_lm_head"], f"qformat is {FULL_PRECISION}", "pass the qformat that the LM head is to get")


def check_calibration_options(
    recipes: "Sequence[Recipe]", *, chooses: bool = False, measures: bool = False, strips: bool = False
) -> None:
    """Raise click.UsageError if an option configures calibration or a measurement that does not take place.

    ``chooses``: calibration chooses among ``recipes``. ``measures``: the loss of accuracy is measured. ``strips``: the
    engine has no weights, so that none of this is done.
    """
    from trtllm_lite.quantize.schemes import Needs

    stripped = "an engine of --strip_plan has no weights"
    calibrated = _names(lambda scheme: scheme.needs > Needs.NOTHING)
    reason = f"{_described(recipes)} needs no calibration"
    remedy = f"pass a qformat of {calibrated}, or a kv_cache_dtype without kv_cache_scale"
    if all(recipe.changes_nothing for recipe in recipes):
        what = "pass a qformat or a kv_cache_dtype, with the checkpoint that is not quantized"
        _refuse(["max_accuracy_loss"], "nothing is quantized by this build", what)
    if strips:
        reason = f"{stripped} that need calibration"
        remedy = "leave --strip_plan out"
        _refuse(["max_accuracy_loss"], f"{stripped} that could lose accuracy", remedy)
    calibrates = not strips and any(recipe.needs > Needs.NOTHING for recipe in recipes)
    if not calibrates:
        _refuse(["calib_size", "calib_max_seq_length", "calib_seed", "num_threads"], reason, remedy)
    if not calibrates and not chooses:
        _refuse(["calib_dataset", "calib_dir"], reason, remedy)
    if not calibrates and not chooses and (strips or not measures):
        _refuse(["device"], reason, remedy)


def _refuse(names: Sequence[str], reason: str, remedy: str) -> None:
    """Raise click.UsageError if one of the options ``names`` is given on the command line."""
    context = click.get_current_context()
    for name in names:
        if context.get_parameter_source(name) not in (None, ParameterSource.DEFAULT):
            raise click.UsageError(f"--{name} is given, and {reason}: leave it out, or {remedy}")


def _described(recipes: "Sequence[Recipe]") -> str:
    return " or ".join(dict.fromkeys(recipe.describe() for recipe in recipes))


def _names(chosen: "Callable[[Scheme], bool]") -> str:
    from trtllm_lite.quantize.schemes import SCHEMES

    return ", ".join(name for name, scheme in SCHEMES.items() if chosen(scheme))
