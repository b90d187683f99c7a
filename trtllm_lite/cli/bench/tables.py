"""Prints figures as tables, with the names and units that ``bench.metrics`` declares."""

from collections.abc import Mapping
from typing import Any


def print_figures(title: str, figures: Mapping[str, Any]) -> None:
    """Print distributions as a table with a column for each percentile, and plain figures as another table."""
    from trtllm_lite.bench.metrics import METRICS
    from trtllm_lite.cli.console import print_table

    distributions = {name: value for name, value in figures.items() if isinstance(value, Mapping) and value}
    plain = {name: value for name, value in figures.items() if not isinstance(value, Mapping)}
    if distributions:
        parts = list(next(iter(distributions.values())))
        rows = [
            [METRICS[name].title, *(METRICS[name].text(value[part]) for part in parts)]
            for name, value in distributions.items()
        ]
        print_table(title, ["", *parts], rows)
        title = ""
    if plain:
        rows = [[METRICS[name].title, METRICS[name].text(value)] for name, value in plain.items()]
        print_table(title, ["", ""], rows)
