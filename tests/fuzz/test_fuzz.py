"""Any content of a file or a request is read or refused by one of our errors, in bounded memory and time."""

import pytest

from tests.fuzz.runner import run
from tests.fuzz.targets import NAMES, load_target
from tests.rounds import rounds


@pytest.mark.parametrize("name", NAMES)
def test_inputs_are_read_or_refused(name: str) -> None:
    count = rounds(load_target(name).COUNT)
    outcome = run(name, 0, count)
    assert outcome.failed_seed is None, outcome.report
    assert 0 < outcome.accepted < count, outcome.accepted
