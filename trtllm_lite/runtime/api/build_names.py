"""The arguments of ``LLM`` that builds call otherwise, and errors of builds that name what the caller wrote."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from trtllm_lite.errors import BuildError

ARGUMENTS = {
    "tp_size": "tensor_parallel_size",
    "pp_size": "pipeline_parallel_size",
    "moe_ep_size": "moe_expert_parallel_size",
    "max_draft_len": "num_speculative_tokens",  # of speculative_config
}
_NAME = re.compile(rf"(?:--)?\b({'|'.join(ARGUMENTS)})\b")


@contextmanager
def named_as_arguments() -> Iterator[None]:
    """Raise BuildErrors of what runs inside with the names that ``LLM`` has for limits, instead of options' names."""
    try:
        yield
    except BuildError as error:
        raise BuildError(_NAME.sub(lambda found: ARGUMENTS[found[1]], str(error))) from error
