"""Defines the options of quantization and calibration, which `quantize` and `build` share."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from trtllm_lite.cli.framework import Decorated, together
from trtllm_lite.cli.option_types import Finite
from trtllm_lite.common.vocabulary import KV_CACHE_DTYPES, PLAIN_DTYPES, STATE_DTYPES

if TYPE_CHECKING:
    from trtllm_lite.quantize.network import Recipe
    from trtllm_lite.quantize.schemes.workpiece import Decision
    from trtllm_lite.workflows.calibration import Calibration

QFORMATS = (
    *("full_prec", "int8_wo", "fp8_wo", "int4_wo", "int4_awq", "int4_gptq"),
    *("fp8_rowwise", "fp8_rowwise_gptq", "fp8", "fp8_gptq", "int8_sq", "w4a8_awq"),
)
QFORMAT_TYPE = click.Choice(QFORMATS)
CACHE_DTYPE_TYPE = click.Choice(["auto", *PLAIN_DTYPES, *KV_CACHE_DTYPES])
KEY_DTYPE_TYPE = click.Choice(["auto", *PLAIN_DTYPES])
STATE_DTYPE_TYPE = click.Choice(STATE_DTYPES)
QFORMAT_HELP = f"How products are quantized: {', '.join(QFORMATS)}; docs/quantize.md describes each."
_CALIBRATION = ("calib_dataset", "calib_size", "calib_max_seq_length", "calib_seed", "calib_dir", "device")
DEVICES = ("cpu", "cuda")


def recipe_options(function: Decorated) -> Decorated:
    """A decorator that adds the options for the schemes of products, except --qformat."""
    options: list[Callable[[Any], Any]] = [
        click.option(
            "--group_size",
            type=int,
            default=128,
            show_default=True,
            help="Neighbouring weights of a row that share a scale, in qformats of 4 bits.",
        ),
        click.option("--quantize_lm_head", is_flag=True, help="Quantize the LM head, too."),
        click.option(
            "--quantize_override",
            multiple=True,
            metavar="PATTERN=QFORMAT",
            help="Another qformat for products whose path matches, as in 'layers.0.*=full_prec'; the last match wins.",
        ),
        click.option(
            "--kv_cache_scale",
            type=Finite(min=0, min_open=True),
            help="Divide all keys and values by this number before they become fp8 or int8, instead of calibrating.",
        ),
        click.option(
            "--key_cache_dtype",
            type=KEY_DTYPE_TYPE,
            default="auto",
            show_default=True,
            help="Type of keys beside values in fp8 or int8. auto is the type of values. The others leave keys as they "
            "are, which saves most of the accuracy that such a KV cache costs; on GPUs, the type of activations.",
        ),
    ]
    return together(*options)(function)


def calibration_options(function: Decorated) -> Decorated:
    """A decorator that adds the options of calibration."""
    options: list[Callable[[Any], Any]] = [
        click.option(
            "--calib_dataset",
            metavar="FILE",
            help="Text for calibration: .txt, or .jsonl of texts. [default: a text that comes with trtllm_lite]",
        ),
        click.option("--calib_size", type=int, help="Sequences to calibrate with. [default: all, at most 512]"),
        click.option(
            "--calib_max_seq_length",
            type=int,
            default=512,
            show_default=True,
            help="Maximum number of tokens of a sequence.",
        ),
        click.option("--calib_seed", type=int, default=0, show_default=True, help="Seed of the draw of the sequences."),
        click.option(
            "--calib_dir",
            metavar="DIR",
            help="Directory that keeps statistics, from which an interrupted run continues. [default: not kept]",
        ),
        click.option(
            "--device",
            type=click.Choice(DEVICES),
            default=DEVICES[0],
            show_default=True,
            help="What calibration and measurements of loss run on: cuda is the GPU of this machine.",
        ),
    ]
    return together(*options)(function)


def take_recipe(qformat: str, options: dict[str, Any]) -> "Recipe":
    """The recipe; removes its options from ``options``, except those that name types of caches.

    Raises click.UsageError, BuildError.
    """
    from trtllm_lite.quantize.network import Recipe

    overrides = []
    for text in options.pop("quantize_override"):
        pattern, equals, name = text.rpartition("=")
        if not equals:
            raise click.UsageError(f"--quantize_override {text}: expected PATTERN=QFORMAT")
        overrides.append((pattern, name))
    cache, scale = options["kv_cache_dtype"], options.pop("kv_cache_scale")
    follows_network = cache in ("auto", *PLAIN_DTYPES)  # an engine whose caches have what the network stores
    return Recipe(
        qformat,
        options.pop("quantize_lm_head"),
        tuple(overrides),
        options.pop("group_size"),
        None if follows_network else cache,
        scale,
        "auto" if follows_network else options["key_cache_dtype"],
    )


def take_calibration(options: dict[str, Any], num_threads: int | None = None) -> "Calibration":
    """The settings of calibration; removes their options from ``options``. Raises ArgumentError."""
    from pathlib import Path

    from trtllm_lite.quantize.calibration.dataset import CalibrationText
    from trtllm_lite.workflows.calibration import Calibration

    dataset, size, length, seed, directory, device = (options.pop(name) for name in _CALIBRATION)
    text = CalibrationText(Path(dataset) if dataset else None, size, length, seed)
    return Calibration(text, Path(directory) if directory else None, num_threads, device)


def print_decisions(decisions: "Sequence[Decision]") -> None:
    """Print the decisions of schemes: how many sites of a kind share a decision, and the first of them."""
    of_kind = Counter(decision.kind for decision in decisions)
    for (kind, text), count in Counter((decision.kind, decision.text) for decision in decisions).items():
        first = next(decision.site for decision in decisions if (decision.kind, decision.text) == (kind, text))
        click.echo(f"{count} of {of_kind[kind]} {kind} ({first}{', …' if count > 1 else ''}): {text}")
