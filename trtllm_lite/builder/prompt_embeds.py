"""Refuses prompts of embeddings where an engine cannot take them."""

import onnx_ir as ir

from trtllm_lite.builder.graph import nodes_of
from trtllm_lite.builder.limits import BuildLimits
from trtllm_lite.errors import BuildError

# Families whose networks keep their residual stream divided by a factor, which rows would have to be divided by, too.
_SCALED_STREAMS = ("granite", "granitemoe")


def check_prompt_embeds(limits: BuildLimits, backend: str, family: str, network: ir.Graph) -> None:
    """Raise BuildError if ``limits`` ask for prompts of embeddings, and family, network or backend do not take them."""
    if not limits.enable_prompt_embeds:
        return
    problems = {
        "the backend is tensorrt, whose networks look up tokens themselves": backend == "tensorrt",
        f"networks of {family} scale their residual stream": family in _SCALED_STREAMS,
        "the network looks up a second embedding of each token (inputs of layers)": _lookups(network) > 1,
        f"pp_size is {limits.pp_size}": limits.pp_size > 1,
    }
    for problem, found in problems.items():
        if found:
            raise BuildError(
                f"enable_prompt_embeds is given, or there is a vision tower, and {problem}: leave enable_prompt_embeds "
                "out, or convert the text model alone (--text_only)"
            )


def _lookups(network: ir.Graph) -> int:
    """How many tables the network looks tokens up in."""
    ids = [node.inputs[1] for node in nodes_of(network, "Gather")]
    return sum(value is not None and value.name == "input_ids" for value in ids)
