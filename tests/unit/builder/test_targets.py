"""Names of targets."""

from typing import Any

import pytest

from trtllm_lite.builder.backends import backend_of
from trtllm_lite.builder.job import Tuning
from trtllm_lite.errors import BuildError


def check(targets: Any) -> None:
    """The first check of a build: whether it supports the target."""
    backend, names = backend_of(targets)
    backend.check(names, False, Tuning())


ODD = [5, None, [], [5], [None], ["sm_90", 5], ["x" * 300_000], ["sm_90\x1b[2J"]]


@pytest.mark.parametrize("targets", ODD, ids=lambda targets: repr(targets)[:12])
def test_what_names_no_target_is_an_error(targets: Any) -> None:
    with pytest.raises(BuildError, match="expected cpu") as raised:
        check(targets)
    assert len(str(raised.value)) < 500
    assert "\x1b" not in str(raised.value)
