"""An engine of the cache that is sound is left alone, whatever GPU there is."""

from pathlib import Path

import pytest

from trtllm_lite import engine_cache
from trtllm_lite.engine_cache import Recipe, open_cached
from trtllm_lite.errors import DeviceError

RECIPE = Recipe("sm_90", "auto", {}, None, gather_context_logits=False)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model whose engines are a file each, in an empty cache."""

    def make(source: Path, recipe: Recipe, entry: Path) -> None:
        assert (source, recipe) == (tmp_path / "model", RECIPE)
        entry.mkdir()
        (entry / "rank0.engine").write_text("made")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(engine_cache, "_make", make)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    return tmp_path / "model"


def content(entry: Path) -> str:
    return (entry / "rank0.engine").read_text()


def test_a_sound_engine_survives_a_gpu_that_cannot_run_it(model: Path) -> None:
    entry, _ = open_cached(str(model), RECIPE, content)
    (entry / "rank0.engine").write_text("found")

    def refuse(_: Path) -> None:
        raise DeviceError("expected an engine for another GPU")

    with pytest.raises(DeviceError, match="another GPU"):
        open_cached(str(model), RECIPE, refuse)
    assert open_cached(str(model), RECIPE, content) == (entry, "found")
