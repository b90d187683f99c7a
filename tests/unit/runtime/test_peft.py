"""Reading of adapter files, which may be hostile."""

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from peft import LoraConfig
from safetensors.numpy import save

from trtllm_lite.engine.manifest import ModuleRows
from trtllm_lite.errors import EngineError, LimitError
from trtllm_lite.runtime.lora.contents import CHUNK_BYTES, read_contents
from trtllm_lite.runtime.lora.peft import MAX_WEIGHTS_BYTES, Projections, read_adapter
from trtllm_lite.runtime.lora.settings import parse_settings
from trtllm_lite.runtime.lora.tensors import read_tensors

SHAPES = {"layers.0.self_attn.q_proj": (6, 4), "layers.0.mlp.down_proj": (10, 6), "layers.1.self_attn.q_proj": (6, 4)}
ROWS = [ModuleRows(f"model.{name}", ((0, out, 1),), 1, 0) for name, (_, out) in SHAPES.items()]
PROJECTIONS = Projections(ROWS, list(SHAPES.values()), 8)
CONFIG = {"peft_type": "LORA", "r": 2, "lora_alpha": 3, "bias": "none"}
PREFIX = "base_model.model.model.layers.0.self_attn.q_proj"


def matrices(rank: int = 2, prefix: str = PREFIX, num_in: int = 6, num_out: int = 4) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    a, b = generator.standard_normal((rank, num_in)), generator.standard_normal((num_out, rank))
    return {f"{prefix}.lora_A.weight": a.astype(np.float32), f"{prefix}.lora_B.weight": b.astype(np.float32)}


def write(directory: Path, tensors: dict[str, np.ndarray], **config: object) -> Path:
    (directory / "adapter_config.json").write_text(json.dumps(CONFIG | config))
    (directory / "adapter_model.safetensors").write_bytes(save(tensors))
    return directory


@pytest.mark.parametrize(
    ("config", "scale"),
    [
        ({}, 3 / 2),
        ({"use_rslora": True}, 3 / 2**0.5),
        ({"alpha_pattern": {"q_proj": 5}}, 5 / 2),
        ({"alpha_pattern": {"layers.0.self_attn.q_proj": 5}}, 5 / 2),
        ({"alpha_pattern": {"^model.layers.0.self_attn.q_proj": 5}}, 5 / 2),
        ({"alpha_pattern": {"^q_proj": 5, "proj": 7}}, 3 / 2),
        ({"r": 7, "rank_pattern": {"q_proj": 2}}, 3 / 2),
    ],
)
def test_the_scale_is_that_of_the_settings(tmp_path: Path, config: dict[str, object], scale: float) -> None:
    tensors = matrices()
    found = read_adapter(write(tmp_path, tensors, **config), PROJECTIONS)
    assert found.pairs.keys() == {0}
    pair = found.pairs[0]
    np.testing.assert_array_equal(pair.a, tensors[f"{pair.name}.lora_A.weight"])
    np.testing.assert_array_equal(pair.b, tensors[f"{pair.name}.lora_B.weight"])
    assert pair.scale == pytest.approx(scale)


def test_keys_tell_contents_apart(tmp_path: Path) -> None:
    first = read_adapter(write(tmp_path, matrices()), PROJECTIONS).key
    assert read_adapter(write(tmp_path, matrices()), PROJECTIONS).key == first
    assert read_adapter(write(tmp_path, matrices(), lora_alpha=4), PROJECTIONS).key != first


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, 2 * CHUNK_BYTES + 17])
def test_contents_are_read_whole_and_every_byte_is_in_the_digest(tmp_path: Path, size: int) -> None:
    data, path = np.random.default_rng(size).bytes(size), tmp_path / "file"

    def read(content: bytes) -> tuple[bytes, bytes]:
        path.write_bytes(content)
        with path.open("rb") as file:
            contents = read_contents(file.fileno(), len(content))
        return bytes(contents.data), contents.digest

    found, digest = read(data)
    assert found == data
    for at in {0, size // 2, max(size - 1, 0)} if size else ():
        assert read(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])[1] != digest
    assert read(data + b"x")[1] != digest


def test_a_file_that_becomes_shorter_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(CHUNK_BYTES + 5))
    with path.open("rb") as file:
        os.truncate(path, CHUNK_BYTES + 3)
        with pytest.raises(EngineError, match=f"bytes or more, found {CHUNK_BYTES + 3};"):
            read_contents(file.fileno(), CHUNK_BYTES + 5)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_elements_are_those_of_the_file(dtype: type) -> None:
    value = np.array([[1.5, -2.25], [0.0, 3.0]], dtype)
    found = read_tensors(memoryview(save({"x": value})))["x"]
    assert found.dtype == (np.uint16 if dtype is ml_dtypes.bfloat16 else dtype)
    np.testing.assert_array_equal(found.view(dtype), value)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({}, "no tensors"),
        (matrices(prefix=PREFIX.replace("q_proj", "qkv_proj")), "lets adapters change down_proj, q_proj"),
        (matrices(prefix=PREFIX.replace("0", "2")), "layers.2"),
        (matrices() | matrices(prefix=PREFIX.replace("model.model", "model.model.language_model")), "under two names"),
        (matrices(prefix=PREFIX.replace("model.layers", "vision_tower.layers")), "has no such layer"),
        ({f"{PREFIX}.lora_magnitude_vector": np.ones(4, np.float32)}, "DoRA"),
        ({"base_model.model.lm_head.weight": np.ones((4, 2), np.float32)}, "embeddings"),
        ({f"{PREFIX}.lora_A.weight": np.ones((2, 6), np.float32)}, "expected A"),
        (matrices(num_in=5), "expected A"),
        (matrices(num_out=5), "expected A"),
        ({name: value.astype(np.int32) for name, value in matrices().items()}, "'I32'"),
    ],
)
def test_tensors_of_something_else_are_refused(tmp_path: Path, tensors: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        read_adapter(write(tmp_path, tensors), PROJECTIONS)


def test_a_rank_above_the_engines_names_limit_value_and_remedy(tmp_path: Path) -> None:
    with pytest.raises(LimitError, match=r"rank 9 .* above max_lora_rank 8 .* --max_lora_rank 16"):
        read_adapter(write(tmp_path, matrices(rank=9), r=9), PROJECTIONS)


def test_every_setting_of_peft_is_known() -> None:
    """All settings that PEFT writes for a LoRA adapter are accepted."""
    settings = json.loads(json.dumps(LoraConfig(r=2, lora_alpha=3, target_modules=["q_proj"]).to_dict(), default=list))
    found = parse_settings(json.dumps(settings | {"peft_version": "0.99", "enable_lora": None}).encode())
    assert (found.rank, found.alpha, found.use_rslora) == (2, 3, False)


@pytest.mark.parametrize("initial", [True, False, "gaussian", "eva", "orthogonal", "mica"])
def test_adapters_of_unchanged_weights_are_read(initial: object) -> None:
    assert parse_settings(json.dumps(CONFIG | {"init_lora_weights": initial}).encode()).rank == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *(
            ({"init_lora_weights": name}, f"init_lora_weights is '{name}'.*path_initial_model_for_weight_conversion")
            for name in ("pissa", "pissa_niter_4", "olora", "corda", "loftq", "lora_ga", "of tomorrow")
        ),
        ({"init_lora_weights": 1}, "init_lora_weights is 1"),
        ({"use_rslora": "yes"}, "use_rslora is 'yes', expected true or false"),
        ({"use_dora": 0}, "use_dora is 0, which no engine applies"),
        ({"kasa_config": {"beta": 1}}, "kasa_config"),
        ({"use_next_lora": False}, "the key 'use_next_lora', which this trtllm_lite does not know"),
    ],
)
def test_settings_that_change_results_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        parse_settings(json.dumps(CONFIG | change).encode())


def test_settings_that_are_said_twice_are_refused() -> None:
    with pytest.raises(EngineError, match="duplicate keys"):
        parse_settings(json.dumps(CONFIG).encode().replace(b"{", b'{"r": 9, ', 1))


@pytest.mark.parametrize("missing", ["adapter_config.json", "adapter_model.safetensors"])
def test_pickles_are_not_looked_for(tmp_path: Path, missing: str) -> None:
    write(tmp_path, matrices())
    (tmp_path / missing).rename(tmp_path / "adapter_model.bin")
    with pytest.raises(EngineError, match=missing):
        read_adapter(tmp_path, PROJECTIONS)


def test_files_that_are_links_are_read_where_no_root_is_given(tmp_path: Path) -> None:
    """Hugging Face's cache holds an adapter's files as symbolic links."""
    (tmp_path / "blobs").mkdir()
    (tmp_path / "root" / "adapter").mkdir(parents=True)
    write(tmp_path / "blobs", matrices())
    directory = tmp_path / "root" / "adapter"
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (directory / name).symlink_to(tmp_path / "blobs" / name)
    assert read_adapter(directory, PROJECTIONS).pairs.keys() == {0}
    assert read_adapter(directory, PROJECTIONS, tmp_path).pairs.keys() == {0}
    with pytest.raises(EngineError, match=r"cannot read adapter_config\.json .* a link to a file outside"):
        read_adapter(directory, PROJECTIONS, tmp_path / "root")


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (os.mkfifo, "is not a plain file"),
        (lambda path: path.symlink_to("/dev/zero"), "is not a plain file"),
        (Path.mkdir, "is not a plain file"),
        (lambda path: path.symlink_to(path), "Too many levels of symbolic links"),
        (lambda path: path.open("wb").truncate(MAX_WEIGHTS_BYTES + 1), "bytes, which exceeds"),
    ],
    ids=["pipe", "device", "directory", "loop", "long"],
)
def test_what_is_no_plain_file_is_refused(
    tmp_path: Path, name: str, make: Callable[[Path], object], message: str
) -> None:
    write(tmp_path, matrices())
    (tmp_path / name).unlink()
    make(tmp_path / name)
    with pytest.raises(EngineError, match=f"cannot read {name} .*{message}"):
        read_adapter(tmp_path, PROJECTIONS)


def header(**entry: object) -> bytes:
    text = json.dumps({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} | entry}).encode()
    return struct.pack("<Q", len(text)) + text + bytes(4)


@pytest.mark.parametrize(
    "data",
    [
        *(b"", bytes(7), struct.pack("<Q", 1 << 60), struct.pack("<Q", 2) + b"[]", struct.pack("<Q", 1) + b"{"),
        struct.pack("<Q", 200_000) + b"[" * 200_000,
        *(header(shape=[2]), header(shape=[-1]), header(shape=[1 << 62, 1 << 62]), header(shape=[True])),
        *(header(data_offsets=[0, 5]), header(data_offsets=[-4, 0]), header(data_offsets=[4, 0])),
        header(dtype=["F32"]),
        *(header(data_offsets=[0]), header(data_offsets=[0.0, 4.0]), header(shape=None), header(shape=[1] * 5)),
    ],
)
def test_damaged_files_are_errors(data: bytes) -> None:
    with pytest.raises(EngineError, match="to be a whole safetensors file"):
        read_tensors(memoryview(data))
