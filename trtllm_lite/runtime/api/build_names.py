"""Maps arguments of ``LLM`` to the builder's names, and reports errors of builds under the caller's names."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from trtllm_lite.errors import BuildError

ARGUMENTS = {
    "tp_size": "tensor_parallel_size",
    "pp_size": "pipeline_parallel_size",
    "moe_ep_size": "moe_expert_parallel_size",
    "max_draft_len": "num_speculative_tokens",  # a field of speculative_config
}
_NAME = re.compile(rf"(?:--)?\b({'|'.join(ARGUMENTS)})\b")


@contextmanager
def named_as_arguments() -> Iterator[None]:
    """Re-raise BuildErrors of the ``with`` block with options of the command renamed to arguments of ``LLM``."""
    try:
        yield
    except BuildError as error:
        raise BuildError(_NAME.sub(lambda found: ARGUMENTS[found[1]], str(error))) from error
