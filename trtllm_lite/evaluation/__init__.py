"""How well an engine predicts a text, alone and beside an engine that it should equal."""

from trtllm_lite.evaluation.evaluate import Evaluation, evaluate

__all__ = ["Evaluation", "evaluate"]
