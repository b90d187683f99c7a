"""The engine cache: what is made once, what is made again, what is removed, and what never is."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.unit.builder.checkpoints import save_checkpoint
from trtllm_lite import convert, engine_cache
from trtllm_lite.builder import Checkpoint
from trtllm_lite.cli import cli
from trtllm_lite.engine_cache import Conversion, Recipe
from trtllm_lite.errors import ArgumentError, ConvertError, DeviceError, EngineError, OutputError
from trtllm_lite.runtime.core import core
from trtllm_lite.workflows import cached_engine
from trtllm_lite.workflows.cached_engine import open_cached

LIMITS = {"max_batch_size": 2, "max_input_len": 8, "max_seq_len": 16, "max_num_tokens": None}

TARGET = "the target is cpu"


def recipe(*ignored: str, **limits: int) -> Recipe:
    return Recipe("cpu", Conversion(ignore_config_keys=ignored), {**LIMITS, **limits}, 16, flags={})


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model in an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    return tmp_path / "model"


@pytest.fixture
def converted(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The checkpoints that were converted, of any model."""
    made: list[Path] = []

    def convert_checkpoint(source: str, path: Path, *, progress: Any, **conversion: Any) -> None:
        ignored = conversion.pop("ignore_config_keys")
        assert (Path(source).name, conversion) == ("model", {"dtype": "auto", "dequantize": False})
        assert set(ignored) <= {"flavour"}
        progress("weight", 1, 1)
        made.append(save_checkpoint(path))

    monkeypatch.setattr(convert, "convert_checkpoint", convert_checkpoint)
    return made


def load(entry: Path) -> Any:
    return core().Engine(str(entry / "rank0.engine"))


def test_other_limits_take_another_engine_of_the_same_checkpoint(model: Path, converted: list[Path], capfd) -> None:
    entries = [open_cached(str(model), recipe(max_batch_size=size), load, TARGET)[0] for size in (1, 2, 2)]
    assert entries[0] != entries[1] == entries[2]
    assert len(converted) == 1
    assert converted[0].is_dir()
    assert capfd.readouterr().err.count(f"of {model} in ") == 2


def test_ignored_keys_take_another_checkpoint(model: Path, converted: list[Path]) -> None:
    plain, _ = open_cached(str(model), recipe(), load, TARGET)
    ignoring, _ = open_cached(str(model), recipe("flavour"), load, TARGET)
    assert plain != ignoring
    assert len(set(converted)) == 2


def test_a_damaged_checkpoint_is_converted_again(model: Path, converted: list[Path]) -> None:
    open_cached(str(model), recipe(), load, TARGET)
    (converted[0] / "network.onnx").write_bytes(b"")
    open_cached(str(model), recipe(max_batch_size=1), load, TARGET)
    assert len(converted) == 2


def test_an_error_of_the_build_leaves_the_checkpoint(
    model: Path, converted: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    open_cached(str(model), recipe(), load, TARGET)
    calls = []

    def refuse(*_: object, **__: object) -> None:
        calls.append(1)
        raise EngineError("not of the checkpoint")

    monkeypatch.setattr("trtllm_lite.builder.build_engine", refuse)
    with pytest.raises(EngineError, match="not of the checkpoint"):
        open_cached(str(model), recipe(max_batch_size=1), load, TARGET)
    assert (len(calls), len(converted)) == (1, 1)
    assert converted[0].is_dir()


@pytest.mark.usefixtures("converted")
class TestDamage:
    def test_a_sound_engine_survives_whatever_error_it_is_opened_with(self, model: Path) -> None:
        entry, _ = open_cached(str(model), recipe(), load, TARGET)
        before = (entry / "rank0.engine").stat()
        for error in (DeviceError("another GPU"), EngineError("the C++ extension does not load"), MemoryError()):

            def refuse(_: Path, error: BaseException = error) -> None:
                raise error

            with pytest.raises(type(error)):
                open_cached(str(model), recipe(), refuse, TARGET)
        assert (entry / "rank0.engine").stat().st_ino == before.st_ino

    def test_nothing_is_removed_if_the_extension_does_not_load(
        self, model: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        entry, _ = open_cached(str(model), recipe(), load, TARGET)

        def absent() -> None:
            raise EngineError("the C++ extension trtllm_lite._core does not load")

        monkeypatch.setattr("trtllm_lite.runtime.core.core", absent)
        with pytest.raises(EngineError, match="does not load"):
            open_cached(str(model), recipe(), lambda _: absent(), TARGET)
        assert entry.is_dir()

    @pytest.mark.parametrize("name", ["rank0.engine", "tokenizer.json"])
    @pytest.mark.parametrize("damage", [b"", None])
    def test_damaged_files_are_made_again(self, model: Path, name: str, damage: bytes | None) -> None:
        entry, _ = open_cached(str(model), recipe(), load, TARGET)
        sound = (entry / name).read_bytes()
        (entry / name).unlink()
        if damage is not None:
            (entry / name).write_bytes(damage)

        def open_all(path: Path) -> Any:
            if (path / name).is_file() and (path / name).read_bytes() == sound:
                return load(path)
            raise EngineError("damaged")

        assert open_cached(str(model), recipe(), open_all, TARGET)[0] == entry
        assert (entry / name).read_bytes() == sound


@pytest.fixture
def read_only(model: Path, converted: list[Path]) -> Iterator[Path]:  # noqa: ARG001
    """A cache with an engine, to which not even root can write: a directory stands where the lock file was."""
    entry, _ = open_cached(str(model), recipe(), load, TARGET)
    lock = entry.with_suffix(".lock")
    lock.unlink()
    lock.mkdir()
    yield model
    lock.rmdir()


def test_a_warm_cache_is_only_read(read_only: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(30, "Read-only file system")

    monkeypatch.setattr(os, "utime", refuse)
    open_cached(str(read_only), recipe(), load, TARGET)


def test_a_cache_that_cannot_be_written_says_what_to_do(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(OutputError, match=r"cannot write the engine cache .*set XDG_CACHE_HOME"):
        open_cached(str(model), recipe(), load, TARGET)


def test_without_a_home_it_says_what_to_set(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(OutputError, match=r"no home directory .*: set XDG_CACHE_HOME"):
        open_cached(str(model), recipe(), load, TARGET)


def test_a_model_that_cannot_be_read_is_an_error(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> bytes:
        raise PermissionError(13, "Permission denied", str(model / "config.json"))

    monkeypatch.setattr("trtllm_lite.engine_cache.recipe._content", refuse)
    with pytest.raises(ConvertError, match=r"cannot read .*config\.json: Permission denied: check the path"):
        open_cached(str(model), recipe(), load, TARGET)


def use(entry: Path, seconds: int) -> None:
    os.utime(entry, (seconds, seconds))


def test_what_is_unused_for_longest_makes_room(
    model: Path, converted: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (open_cached(str(model), recipe(max_batch_size=size), load, TARGET)[0] for size in (1, 2))
    use(first, 2000)
    use(second, 1000)
    sizes = [entry.num_bytes for entry in engine_cache.list_cache()]
    room = sum(sizes) + min(sizes) // 2  # engines with other limits differ by some bytes
    monkeypatch.setenv(engine_cache.SIZE_VARIABLE, str(room))
    third, _ = open_cached(str(model), recipe(max_batch_size=3), load, TARGET)
    assert {entry.path for entry in engine_cache.list_cache()} == {first, third, converted[0]}
    monkeypatch.setenv(engine_cache.SIZE_VARIABLE, "1 B")
    open_cached(str(model), recipe(max_batch_size=4), load, TARGET)
    kinds = [entry.kind for entry in engine_cache.list_cache()]
    assert sorted(kinds) == ["checkpoints", "engines"]  # the two that were just made


def test_a_size_that_is_none_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(engine_cache.SIZE_VARIABLE, "plenty")
    with pytest.raises(ArgumentError, match="TRTLLM_LITE_CACHE_SIZE is 'plenty': expected a size such as 20 GiB"):
        engine_cache.cache_limit()


@pytest.mark.usefixtures("converted")
def test_the_cache_is_listed_and_cleared(model: Path, tmp_path: Path) -> None:
    entry, engine = open_cached(str(model), recipe(), load, TARGET)
    listed = CliRunner().invoke(cli, ["cache", "list"])
    assert listed.exit_code == 0, listed.output
    assert listed.output.count(str(model)) == 2
    assert "of at most 64.0 GiB in " in listed.output
    cleared = CliRunner().invoke(cli, ["cache", "clear"])
    assert cleared.output.startswith("removed 2 entries, ")
    assert not entry.exists()
    assert engine.manifest  # what is open stays open
    assert [path for path in (tmp_path / "cache").rglob("*") if not path.is_dir()] == []
    assert CliRunner().invoke(cli, ["cache", "clear"]).output == "removed 0 entries, 0 B\n"


@pytest.mark.usefixtures("converted")
def test_what_is_being_made_is_not_removed(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = cached_engine._build

    def build_meanwhile(checkpoint: Checkpoint, *arguments: Any) -> None:
        assert engine_cache.clear_cache()[0] == 0
        assert checkpoint.path is not None
        assert checkpoint.path.is_dir()
        build(checkpoint, *arguments)

    monkeypatch.setattr(cached_engine, "_build", build_meanwhile)
    open_cached(str(model), recipe(), load, TARGET)


@pytest.mark.usefixtures("converted")
def test_a_copy_of_a_model_is_the_same_model(model: Path, tmp_path: Path) -> None:
    entry, _ = open_cached(str(model), recipe(), load, TARGET)
    shutil.copytree(model, tmp_path / "copy" / "model")
    assert open_cached(str(tmp_path / "copy" / "model"), recipe(), load, TARGET)[0] == entry
