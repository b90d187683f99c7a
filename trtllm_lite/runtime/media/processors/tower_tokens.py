"""How many placeholder tokens a tower of fixed extents has besides one for each patch."""

from trtllm_lite.runtime.media.processors.settings import Checkpoint

STRATEGY = "vision_feature_select_strategy"


def read_extra_tokens(checkpoint: Checkpoint, class_tokens: int) -> int:
    """The tokens of an image less its patches.

    Models like LLaVA say in config.json whether they take the tower's whole output ("full"), which ``class_tokens``
    precede, or leave its first feature out ("default"). Others take the patches. Raises EngineError.
    """
    strategy = checkpoint.model.get(STRATEGY, None)
    if strategy is None:
        return 0
    if strategy not in ("default", "full"):
        raise checkpoint.model.refusal(STRATEGY, '"default" or "full"')
    return class_tokens - (strategy == "default")
