"""Output directories appear whole or not at all, and never at the cost of somebody else's files."""

import errno
import fcntl
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from trtllm_lite.common import temporaries
from trtllm_lite.common.files import (
    atomic_directory,
    is_there,
    new_directory,
    require_replaceable,
    require_space,
    write_file,
)
from trtllm_lite.common.scratch import scratch_directory
from trtllm_lite.errors import OutputError

OURS = json.dumps({"producer": "trtllm_lite 0.1.0"})


def _write(path: Path, **files: str) -> None:
    with atomic_directory(path, "config.json") as temporary:
        (temporary / "config.json").write_text(OURS)
        for name, text in files.items():
            (temporary / name).write_text(text)


def _write_and_raise(path: Path, failure: BaseException | type[BaseException]) -> None:
    with atomic_directory(path, "config.json") as temporary:
        (temporary / "config.json").write_text("12345678")
        raise failure


def _listing(path: Path) -> dict[str, str]:
    return {entry.name: entry.read_text() for entry in path.iterdir()}


def test_creates_the_directory_and_its_parents(tmp_path: Path) -> None:
    _write(tmp_path / "a" / "b" / "out", weights="w")
    assert _listing(tmp_path / "a" / "b" / "out") == {"config.json": OURS, "weights": "w"}
    assert os.listdir(tmp_path / "a" / "b") == ["out"]


def test_replaces_an_empty_directory_and_an_earlier_output(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.mkdir()
    _write(path, weights="1")
    _write(path, weights="2", more="3")
    assert _listing(path) == {"config.json": OURS, "weights": "2", "more": "3"}
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("existing", [False, True])
def test_a_failing_body_changes_nothing(tmp_path: Path, failure: type[BaseException], existing: bool) -> None:
    path = tmp_path / "parent" / "out"
    if existing:
        _write(path, weights="old")
    with pytest.raises(failure):
        _write_and_raise(path, failure)
    if existing:
        assert _listing(path) == {"config.json": OURS, "weights": "old"}
        assert os.listdir(path.parent) == ["out"]
    else:
        assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("marker", [None, "not json", "[]", "{}", '{"producer": "somebody else"}'])
def test_refuses_a_directory_that_is_not_ours(tmp_path: Path, marker: str | None) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    if marker is not None:
        (tmp_path / "config.json").write_text(marker)
    before = _listing(tmp_path)
    with pytest.raises(OutputError, match="other files"), atomic_directory(tmp_path, "config.json"):
        pytest.fail("the body must not run")
    assert _listing(tmp_path) == before


def test_refuses_to_drop_unknown_files_of_an_earlier_output(tmp_path: Path) -> None:
    path = tmp_path / "out"
    _write(path, weights="old")
    (path / "notes.txt").write_text("mine")
    with pytest.raises(OutputError, match=r"notes\.txt"):
        _write(path, weights="new")
    assert _listing(path) == {"config.json": OURS, "weights": "old", "notes.txt": "mine"}
    assert os.listdir(tmp_path) == ["out"]


def test_refuses_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(OutputError, match="is a file"):
        _write(tmp_path / "out")
    with pytest.raises(OutputError, match="a parent of it is a file"):
        _write(tmp_path / "out" / "below")


def test_a_full_disk_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"No space left.*8 bytes written, [\d,]+ bytes free.*free some space"):
        _write_and_raise(tmp_path / "out", OSError(errno.ENOSPC, "No space left on device"))
    assert os.listdir(tmp_path) == []


@contextmanager
def small_files() -> Iterator[None]:
    """No file may become larger than 4096 bytes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_file_size_limit_is_one_clear_error(tmp_path: Path) -> None:
    with small_files(), pytest.raises(OutputError, match="file size limit"):
        _write(tmp_path / "out", weights="x" * 100_000)
    assert os.listdir(tmp_path) == []


def test_errors_about_other_files_are_not_blamed_on_the_output(tmp_path: Path) -> None:
    source = PermissionError(13, "Permission denied", str(tmp_path / "model.safetensors"))
    with pytest.raises(PermissionError), atomic_directory(tmp_path / "out", "config.json"):
        raise source
    ours = PermissionError(13, "Permission denied", str(tmp_path / "out" / "weights"))
    with pytest.raises(OutputError, match="check the permissions"), atomic_directory(tmp_path / "out", "config.json"):
        raise ours


def test_a_trial_leaves_nothing_behind(tmp_path: Path) -> None:
    require_replaceable(tmp_path / "new" / "output", "config.json")
    assert list(tmp_path.iterdir()) == []


def test_space_is_checked_beforehand(tmp_path: Path) -> None:
    require_space(tmp_path, 1)
    with pytest.raises(OutputError, match="needs 1,000,000,000,000,000,000 bytes"):
        require_space(tmp_path, 10**18)


def test_a_file_system_that_takes_no_directories():
    absent = Path("/proc/absent")
    with pytest.raises(OutputError, match="/proc takes no new directories"), atomic_directory(absent, "config.json"):
        pass


def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for data in (b"one", b"another"):
        write_file(path, data)
        assert path.read_bytes() == data
    with small_files(), pytest.raises(OSError, match="File too large"):
        write_file(path, b"x" * 100_000)
    assert path.read_bytes() == b"another"
    assert list(tmp_path.iterdir()) == [path]


def _abandon(path: Path, **files: str) -> Path:
    """Write the files that a process killed during its write of ``path`` leaves behind."""
    with temporaries.temporary_directory(path) as temporary:
        for name, text in files.items():
            (temporary / name).write_text(text)
    return temporary


def test_what_killed_processes_left_is_removed(tmp_path: Path) -> None:
    left = _abandon(tmp_path / "out", weights="half")
    of_another_output = _abandon(tmp_path / "other", weights="half")
    _write(tmp_path / "out")
    assert not left.exists()
    assert of_another_output.exists()


def test_a_scratch_directory_is_removed_and_those_of_killed_processes_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = _abandon(tmp_path / f"trtllm_lite-{os.getuid()}-kind", weights="half")
    with scratch_directory("kind") as directory:
        assert list(tmp_path.iterdir()) == [directory] != [left]
        assert directory.stat().st_mode & 0o777 == 0o700
    assert list(tmp_path.iterdir()) == []
    message = r"cannot write .*/engine: .*free some space .*: set TMPDIR to a directory"
    with pytest.raises(OutputError, match=message), scratch_directory("kind") as directory:
        _write_and_raise(directory / "engine", OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(OutputError, match=r"^elsewhere$"), scratch_directory("kind"):
        raise OutputError("elsewhere")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    with pytest.raises(OutputError, match="absent"), scratch_directory("kind"):
        pass


WRITER = """
import sys
from pathlib import Path
from trtllm_lite.common.files import atomic_directory

with atomic_directory(Path(sys.argv[1]), "config.json") as temporary:
    (temporary / "config.json").write_text(sys.argv[2])
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_what_another_process_still_writes_stays(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, tmp_path / "out", OURS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        _write(tmp_path / "out", weights="mine")
        (left,) = tmp_path.glob(".out.*.tmp")
        assert _listing(left) == {"config.json": OURS}
        writer.kill()
    _write(tmp_path / "out", weights="mine")
    assert os.listdir(tmp_path) == ["out"]


def test_a_directory_swept_before_it_was_locked_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    swept: list[Path] = []
    lock = fcntl.flock

    def flock(descriptor: int, operation: int) -> None:
        if not swept:
            swept.extend(tmp_path.iterdir())
            swept[0].rmdir()
        lock(descriptor, operation)

    monkeypatch.setattr(temporaries.fcntl, "flock", flock)
    _write(tmp_path / "out")
    assert len(swept) == 1
    assert os.listdir(tmp_path) == ["out"]


def test_the_working_directory_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _write(Path("out"))
    for directory in (tmp_path / "out", tmp_path / "empty"):
        directory.mkdir(exist_ok=True)
        monkeypatch.chdir(directory)
        with pytest.raises(OutputError, match="is the working directory"):
            _write(Path("."))
        assert os.path.samestat(os.stat("."), directory.stat())


@pytest.mark.parametrize("name", ["a\0b", "a" * 100_000])
def test_names_that_no_directory_can_have(tmp_path: Path, name: str) -> None:
    with pytest.raises(OutputError) as raised:
        _write(tmp_path / name)
    assert len(str(raised.value)) < 1000


def test_a_new_directory_has_subdirectories_and_appears_whole(tmp_path: Path) -> None:
    with new_directory(tmp_path / "a" / "out") as temporary:
        (temporary / "b" / "c").mkdir(parents=True)
        (temporary / "b" / "c" / "file").write_text("x")
        assert not (tmp_path / "a" / "out").exists()
    assert [entry.name for entry in (tmp_path / "a").rglob("*")] == ["out", "b", "c", "file"]


def test_a_new_directory_is_not_there_after_an_error(tmp_path: Path) -> None:
    def fill() -> None:
        with new_directory(tmp_path / "a" / "out") as temporary:
            (temporary / "b").mkdir()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fill()
    assert os.listdir(tmp_path) == []


def test_a_new_directory_replaces_nothing(tmp_path: Path) -> None:
    _write(tmp_path / "ours")
    (tmp_path / "file").write_text("x")
    for name, message in {"ours": "absent or empty, but it holds files", "file": "is a file"}.items():
        with pytest.raises(OutputError, match=message), new_directory(tmp_path / name):
            pass
    assert _listing(tmp_path / "ours") == {"config.json": OURS}


def test_what_is_there_is_known_or_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert is_there(tmp_path / "file")
    assert not any(is_there(tmp_path / name) for name in ("absent", "file/below", "a\0b"))
    with pytest.raises(OSError, match="File name too long"):
        is_there(tmp_path / ("a" * 300))
