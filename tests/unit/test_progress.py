"""Progress is shown to those who can watch it, and costs others nothing."""

import subprocess
import sys

import pytest

from trtllm_lite.common.progress import progress_bars


def test_a_terminal_shows_a_bar_for_each_piece_of_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress_bars() as report:
        report("convert", 1, 2)
        report("convert", 2, 2)
        report("write", 3, 3)
    shown = capsys.readouterr().err
    assert "convert" in shown
    assert "write" in shown
    assert shown.count("100%") >= 2
    with progress_bars(wanted=False) as report:
        report("convert", 1, 2)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("widgets", [False, True])
def test_a_notebook_shows_them_if_it_can(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], widgets: bool
) -> None:
    made: list[bool] = []

    class Progress:
        """Stands in for rich's display, which needs a notebook."""

        def __init__(self, *_: object, disable: bool, **__: object) -> None:
            made.append(not disable)

        def __enter__(self) -> "Progress":
            return self

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr("rich.progress.Progress", Progress)
    monkeypatch.setattr("trtllm_lite.common.progress.find_spec", lambda _: sys if widgets else None)
    with progress_bars():
        pass
    assert made == [widgets]
    assert capsys.readouterr().err == ""


def test_where_nobody_watches_rich_is_not_imported() -> None:
    code = """
import sys
from trtllm_lite.common.progress import progress_bars
with progress_bars() as report:
    report("convert", 1, 1)
assert "rich" not in sys.modules
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")
