"""Finds a scheme for each site of a network: quantizes one at a time, and measures the divergence."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from math import inf
from pathlib import Path

from trtllm_lite.builder import Checkpoint
from trtllm_lite.common.files import write_file, writing
from trtllm_lite.common.progress import Report
from trtllm_lite.common.scratch import scratch_directory
from trtllm_lite.errors import ArgumentError, BuildError, EngineError
from trtllm_lite.evaluation import evaluate
from trtllm_lite.network.tensors import bits_of, stored_bits
from trtllm_lite.quantize.calibration.observed import Observed
from trtllm_lite.quantize.calibration.statistics import Statistics, placeholder
from trtllm_lite.quantize.mixed_precision import Candidate, Choice, Site, check_budget, choose
from trtllm_lite.quantize.network import Recipe, inputs_to_observe, no_calibration, quantize_network
from trtllm_lite.quantize.products import find_products, merged
from trtllm_lite.quantize.schemes import FULL_PRECISION, Needs
from trtllm_lite.workflows.accuracy import build_to_evaluate
from trtllm_lite.workflows.calibration import Calibration, calibration_key, resumable, statistics_of

_WINDOW, _NUM_WINDOWS = 512, 4  # tokens of a window of the calibration text, number of windows
_FILE = "sensitivities.json"
_NOTE = "trtllm_lite.autoq"


def choose_formats(
    checkpoint: Checkpoint, base: Recipe, formats: Sequence[str], bits: float, calibration: Calibration, report: Report
) -> tuple[Recipe, list[Choice]]:
    """Return ``base`` with an override (or none) for each site, and the choices; ``bits`` per weight is the budget.

    A site is products that an engine computes at once: queries, keys and values of a layer, its attention's output,
    gate and up, or down; or the LM head, if ``base`` quantizes that. The divergence of each format is measured over the
    first 2,048 tokens of the calibration text, on its device. With a directory for calibration an interrupted run can
    resume. Raises BuildError (formats, budget), and the errors of
    :func:`statistics_of`.
    """
    if base.changes_products:
        raise BuildError(
            f"autoq_format chooses the qformat of every product, and {base.qformats} is asked for: leave autoq_format "
            "out, or qformat and quantize_override"
        )
    if checkpoint.path is None:
        raise EngineError("a model config has no weights to measure: pass a checkpoint")
    recipes = {qformat: replace(base.of_products, qformat=qformat) for qformat in formats}
    sites = list(_sites(checkpoint, recipes))
    check_budget(sites, bits)
    with resumable(calibration), _statistics(checkpoint, recipes.values(), calibration, report) as statistics:
        measured = _Measured(calibration, checkpoint, base.group_size)
        sites = list(_measure(sites, checkpoint, recipes, statistics, measured, report))
    choices = choose(sites, bits)
    overrides = tuple((name, choice.candidate.qformat) for choice in choices for name in choice.site.names)
    return replace(base, overrides=overrides), choices


def note_of(choices: Sequence[Choice]) -> dict[str, str]:
    """A property of a network with the measurements, the choices and the reasons, as JSON."""
    table = [
        {
            "site": str(choice.site),
            "qformat": choice.candidate.qformat,
            "reason": choice.reason,
            "candidates": [asdict(candidate) for candidate in choice.site.candidates],
        }
        for choice in choices
    ]
    return {_NOTE: json.dumps(table)}


@contextmanager
def _statistics(
    checkpoint: Checkpoint, recipes: Iterable[Recipe], calibration: Calibration, report: Report
) -> Iterator[Callable[[str], Statistics]]:
    """Statistics that suffice for all recipes."""
    observed, needs = dict[str, Observed](), Needs.NOTHING
    for recipe in recipes:
        inputs, wanted = inputs_to_observe(checkpoint.model, recipe)
        observed, needs = observed | inputs, max(needs, wanted)
    if needs == Needs.NOTHING:
        yield no_calibration
        return
    with statistics_of(checkpoint, observed, calibration, needs == Needs.GRAM, report) as store:
        yield store.read


def _sites(checkpoint: Checkpoint, recipes: Mapping[str, Recipe]) -> Iterator[Site]:
    """The sites and their candidates, without divergences."""
    chosen = next(iter(recipes.values())).choose(find_products(checkpoint.model.graph))
    plain = stored_bits(checkpoint.model)
    for own in merged(list(chosen)):
        names = tuple(product.name for product in own)
        num_weights = sum(product.num_elements for product in own)
        own_bits = sum(bits_of(product.matrix.tensor("weight")) for product in own)
        candidates = [Candidate(FULL_PRECISION, own_bits, 0.0)]
        for qformat, recipe in recipes.items():
            empty, _ = quantize_network(checkpoint.model, recipe.only(names), placeholder)
            candidates.append(Candidate(qformat, own_bits - (plain - stored_bits(empty)), inf))
        yield Site(names, num_weights, tuple(candidates))


def _measure(
    sites: Sequence[Site],
    checkpoint: Checkpoint,
    recipes: Mapping[str, Recipe],
    statistics: Callable[[str], Statistics],
    measured: "_Measured",
    report: Report,
) -> Iterator[Site]:
    """``sites`` with the divergences of their candidates."""
    with scratch_directory("autoq") as directory:
        compare = _Comparison(directory, checkpoint, measured)

        def divergence(qformat: str, names: Sequence[str]) -> float:
            network, _ = quantize_network(checkpoint.model, recipes[qformat].only(names), statistics)
            return compare(replace(checkpoint, model=network))

        done = 0
        for site in sites:
            plain, *candidates = site.candidates
            known = [plain]
            for candidate in candidates:
                name, measure = f"{site} {candidate.qformat}", partial(divergence, candidate.qformat, site.names)
                known.append(replace(candidate, divergence=measured.get(name, measure)))
                done += 1
                report("measure", done, len(sites) * len(recipes))
            yield replace(site, candidates=tuple(known))


class _Comparison:
    """The divergence of networks from the checkpoint's, over the text and on the device of ``measured``."""

    def __init__(self, directory: Path, checkpoint: Checkpoint, measured: "_Measured") -> None:
        self._reference, self._engine = directory / "reference", directory / "engine"
        self._dataset = directory / "text.txt"
        self._checkpoint, self._device = checkpoint, measured.device
        write_file(self._dataset, measured.text.encode())

    def __call__(self, quantized: Checkpoint) -> float:
        if not self._reference.exists():
            build_to_evaluate(self._checkpoint, self._device, self._reference, _WINDOW, _ignore)
        build_to_evaluate(quantized, self._device, self._engine, _WINDOW, _ignore)
        most = _WINDOW * _NUM_WINDOWS
        result = evaluate(
            self._engine,
            self._dataset,
            reference_engine_dir=self._reference,
            kept_logits=self._dataset.parent,
            max_tokens=most,
        )
        assert result.reference is not None
        return max(result.reference.kl_divergence, 0.0)


class _Measured:
    """Known divergences; kept in the calibration's directory, if it has one."""

    def __init__(self, calibration: Calibration, checkpoint: Checkpoint, group_size: int) -> None:
        assert checkpoint.path is not None
        self.text, self.device = "\n".join(calibration.text.texts()), calibration.device
        self._file, self._known = None, dict[str, str | float]()
        if calibration.directory is None:
            return
        key = calibration_key(checkpoint.path, calibration, f"{group_size} {_WINDOW} {_NUM_WINDOWS}")
        self._file = Path(calibration.directory) / _FILE
        known = known_divergences(self._file)
        self._known = known if known.get("key") == key else {"key": key}

    def get(self, name: str, measure: Callable[[], float]) -> float:
        """The divergence called ``name``, which is measured if it is unknown."""
        if name not in self._known:
            self._known[name] = measure()
            if self._file is not None:
                with writing(str(self._file), "name another directory for calibration"):
                    self._file.parent.mkdir(parents=True, exist_ok=True)
                    write_file(self._file, json.dumps(self._known, indent=1).encode())
        return float(self._known[name])


def known_divergences(file: Path) -> dict[str, str | float]:
    """The divergences that an earlier run wrote to ``file``; empty without one. ArgumentError if it is damaged."""
    if not file.is_file():
        return {}
    try:
        known = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        known = None
    if not isinstance(known, dict) or not all(isinstance(value, str | float) for value in known.values()):
        raise ArgumentError(f"{file} is damaged: remove it, so that its divergences are measured again")
    return known


def _ignore(stage: str, done: int, total: int) -> None:
    del stage, done, total
