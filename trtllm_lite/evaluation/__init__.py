"""Measures how well an engine predicts a text, alone and beside a reference engine."""

from trtllm_lite.evaluation.evaluate import Evaluation, evaluate

__all__ = ["Evaluation", "evaluate"]
