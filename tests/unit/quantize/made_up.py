"""Made-up calibration statistics of the inputs of a network's matrix products."""

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from trtllm_lite.quantize.calibration.statistics import Statistics
from trtllm_lite.quantize.products import by_input, find_products


def made_up(network: ir.Model, sample_rows: int = 32) -> Callable[[str], Statistics]:
    """Return a function from an input's name to statistics of random rows whose channels differ in magnitude."""
    sizes = {name: group[0].in_features for name, group in by_input(find_products(network.graph)).items()}

    def statistics(name: str) -> Statistics:
        rng = np.random.default_rng(sum(name.encode()))
        spread = np.exp(rng.uniform(-1, 2, sizes[name]))
        rows = (rng.standard_normal((sample_rows, sizes[name])) * spread).astype(np.float32)
        return Statistics(np.abs(rows).max(0), np.abs(rows).mean(0), rows, rows.T @ rows / len(rows))

    return statistics
