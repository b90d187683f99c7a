"""Names of targets."""

from typing import Any

import pytest

from trtllm_lite.builder.cuda.targets import parse_targets
from trtllm_lite.errors import BuildError

<<<<<<< HEAD
ODD = [5, None, [5], [None], ["sm_90", 5], ["x" * 300_000], ["sm_90\x1b[2J"]]
=======

def check(targets: Any) -> None:
    """What a build does first."""
    backend, names = backend_of(targets)
    backend.check(names, False, Tuning())


ODD = [5, None, [], [5], [None], ["sm_90", 5], ["x" * 300_000], ["sm_90\x1b[2J"]]
>>>>>>> 69b10a3 (Hold the help of every command to 80 columns)


@pytest.mark.parametrize("targets", ODD, ids=lambda targets: repr(targets)[:12])
def test_what_names_no_target_is_an_error(targets: Any) -> None:
    with pytest.raises(BuildError, match="expected cpu") as raised:
<<<<<<< HEAD
        parse_targets(targets)
=======
        check(targets)
>>>>>>> 69b10a3 (Hold the help of every command to 80 columns)
    assert len(str(raised.value)) < 500
    assert "\x1b" not in str(raised.value)
