import math
import os
import shutil
import subprocess
import sys
import tracemalloc
from pathlib import Path
from threading import get_ident

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from tests.unit.builder.checkpoints import LIMITS, config_of, save_checkpoint
from tests.unit.builder.networks import VARIANTS, Shape, network
from tests.unit.builder.structure import set_attribute
from trtllm_lite._core import crc32c
from trtllm_lite.builder import build_engine
from trtllm_lite.engine.manifest import Manifest
from trtllm_lite.engine.reader import read_engine
from trtllm_lite.errors import BuildError, OutputError
from trtllm_lite.quantize import threads
from trtllm_lite.quantize.formats import Int8
from trtllm_lite.quantize.formats.format import Rows

BUILD = """
import sys
import tracemalloc
from pathlib import Path
from tests.unit.builder.checkpoints import LIMITS
from trtllm_lite.builder import build_engine
build_engine(Path(sys.argv[1]), Path(sys.argv[2]), **LIMITS)
"""
ROOT = Path(__file__).parents[3]


def _contents(directory: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in directory.iterdir()}


def test_an_engine_directory_is_complete(tmp_path: Path) -> None:
    checkpoint = save_checkpoint(tmp_path / "checkpoint", "qwen3")
    manifest = build_engine(checkpoint, tmp_path / "engine", **LIMITS)
    written = _contents(tmp_path / "engine")
    assert set(written) == {"rank0.engine", "config.json", "tokenizer.json", "tokenizer_config.json"}
    assert written["tokenizer.json"] == (checkpoint / "tokenizer.json").read_bytes()
    assert manifest.files["tokenizer.json"] == f"{crc32c(written['tokenizer.json']):08x}"
    assert manifest == Manifest.from_json(written["config.json"].decode())
    assert manifest == read_engine(tmp_path / "engine").manifest
    assert manifest.model == config_of(VARIANTS["qwen3"])
    assert (manifest.limits.max_num_tokens, manifest.kv_cache.num_blocks) == (48, 9)
    stored = onnx.load(checkpoint / "network.onnx", load_external_data=False).graph.initializer
    assert manifest.num_parameters == sum(math.prod(tensor.dims) for tensor in stored if tensor.external_data)
    assert not [path for path in tmp_path.iterdir() if path.name not in ("checkpoint", "engine")]


def test_the_same_inputs_give_the_same_bytes_anywhere(tmp_path: Path) -> None:
    """Builds differ in paths, hash seeds and processes; one reads a copied checkpoint, one replaces an output."""
    checkpoint = save_checkpoint(tmp_path / "checkpoint", "qwen2")
    build_engine(checkpoint, tmp_path / "engine", **LIMITS)
    expected = _contents(tmp_path / "engine")
    moved = Path(shutil.copytree(checkpoint, tmp_path / "else" / "where"))
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", BUILD, str(moved), str(tmp_path / "other")]
        subprocess.run(command, check=True, env=environment, cwd=ROOT)
        assert _contents(tmp_path / "other") == expected


def test_progress_counts_weights(tmp_path: Path) -> None:
    calls: list[tuple[str, int, int]] = []
    build_engine(
        save_checkpoint(tmp_path / "checkpoint"),
        tmp_path / "engine",
        **LIMITS,
        progress=lambda stage, done, total: calls.append((stage, done, total)),
    )
    assert calls[:2] == [("fuse", 0, 1), ("fuse", 1, 1)]
    assert calls[2:] == [("write", done, 15) for done in range(1, 16)]


@pytest.mark.parametrize("qformat", ["full_prec", "int8_wo"])
def test_memory_stays_at_a_few_times_the_largest_weight(
    qformat: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread computes weights ahead of the writer, and other weights are read one at a time."""
    monkeypatch.setattr(threads, "num_workers", lambda *_: 1)
    shape = Shape(hidden=128, inter=512, layers=6, windows=(0,) * 6)
    checkpoint = save_checkpoint(tmp_path / "checkpoint", shape)
    largest = 2 * shape.inter * shape.hidden * 4

    def start(*state: object) -> None:
        if state == ("fuse", 1, 1):
            tracemalloc.start()

    manifest = build_engine(checkpoint, tmp_path / "engine", **LIMITS, qformat=qformat, progress=start)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 4 * manifest.num_parameters > 8 * largest
    assert peak < 4 * largest


def test_weights_are_computed_ahead_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads other than the writer's compute quantized weights, and read no other weight."""
    computed, read = list[tuple[int, ...]](), set[int]()
    pack, fromfile = Int8.pack, np.fromfile

    def packed(self: Int8, matrix: Rows) -> dict[str, np.ndarray]:
        assert get_ident() != writer
        computed.append((len(matrix), matrix[:1].shape[1]))
        return pack(self, matrix)

    def noted(file: Path, **where: int) -> np.ndarray:
        read.add(get_ident() == writer)
        return fromfile(file, **where)

    writer, shape = get_ident(), Shape()
    checkpoint = save_checkpoint(tmp_path / "checkpoint", shape)
    monkeypatch.setattr(Int8, "pack", packed)
    monkeypatch.setattr(np, "fromfile", noted)
    build_engine(checkpoint, tmp_path / "engine", **LIMITS, qformat="int8_wo")
    assert len(computed) == 7 * shape.layers
    assert read == {True, False}


def test_a_target_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="the target is 'tpu': expected cpu, or one or several of sm_80, "):
        build_engine(save_checkpoint(tmp_path / "checkpoint"), tmp_path / "engine", **LIMITS, target="tpu")


def test_limits_beyond_the_model(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="max_seq_len is 65, but the model's max_position_embeddings is 64"):
        build_engine(save_checkpoint(tmp_path / "checkpoint"), tmp_path / "engine", **{**LIMITS, "max_seq_len": 65})
    assert not (tmp_path / "engine").exists()


def test_a_network_that_does_not_fuse_leaves_nothing_behind(tmp_path: Path) -> None:
    checkpoint = save_checkpoint(tmp_path / "checkpoint")
    model = set_attribute(network("llama"), "layers.0.mlp.swish", alpha=2.0)
    ir.save(model, checkpoint / "network.onnx", external_data="weights.safetensors", size_threshold_bytes=100)
    with pytest.raises(BuildError, match=r"Swish at layers\.0\.mlp\.swish"):
        build_engine(checkpoint, tmp_path / "engine", **LIMITS)
    assert not (tmp_path / "engine").exists()


def test_an_output_directory_of_someone_else_stays(tmp_path: Path) -> None:
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "thesis.txt").write_text("years of work")
    with pytest.raises(OutputError):
        build_engine(save_checkpoint(tmp_path / "checkpoint"), tmp_path / "engine", **LIMITS)
    assert _contents(tmp_path / "engine") == {"thesis.txt": b"years of work"}


def test_an_interrupted_build_leaves_nothing_behind(tmp_path: Path) -> None:
    def interrupt(*state: object) -> None:
        if state == ("write", 3, 15):
            raise KeyboardInterrupt

    checkpoint = save_checkpoint(tmp_path / "checkpoint")
    with pytest.raises(KeyboardInterrupt):
        build_engine(checkpoint, tmp_path / "engine", **LIMITS, progress=interrupt)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_an_output_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"):
        build_engine(save_checkpoint(tmp_path / "checkpoint"), tmp_path / "file" / "engine", **LIMITS)
