"""The probe of memory bandwidth, and the commit of the package."""

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from trtllm_lite.bench import machine
from trtllm_lite.bench.machine import read_bandwidth
from trtllm_lite.errors import LimitError


@pytest.mark.parametrize("num_bytes", [8, 64, 1 << 20, (1 << 20) + 8])
def test_any_number_of_bytes_is_read_by_any_number_of_threads(num_bytes: int) -> None:
    assert all(0 < read_bandwidth(num_threads, num_bytes) < float("inf") for num_threads in (1, 3))


def test_memory_that_does_not_exist_is_refused() -> None:
    with pytest.raises(LimitError, match="probe of the bandwidth"):
        read_bandwidth(1, 1 << 60)


@pytest.mark.parametrize(
    ("recorded", "found"),
    [
        ('{"url": "https://h.example/a.git", "vcs_info": {"vcs": "git", "commit_id": "68a02d39"}}', "68a02d39"),
        ('{"url": "file:///a", "dir_info": {}}', None),
        (None, None),
    ],
)
def test_an_installed_package_has_the_commit_that_pip_recorded(
    recorded: str | None, found: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit is not that of another checkout, in whose directory the package may be installed."""
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    monkeypatch.setattr(machine, "__file__", str(tmp_path / "site-packages" / "trtllm_lite" / "bench" / "machine.py"))
    installed = SimpleNamespace(read_text=lambda name: recorded if name == "direct_url.json" else None)
    monkeypatch.setattr(machine, "distribution", lambda _: installed)
    assert machine.commit() == found


def test_a_checkout_has_its_own_commit() -> None:
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True)
    if head.returncode:
        pytest.skip("this is no checkout")
    assert str(machine.commit()).removesuffix("-dirty") == head.stdout.strip()
