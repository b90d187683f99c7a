import json
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.unit.engine.samples import ARRAYS, MANIFEST, plan, weights, write_sample
from trtllm_lite._core import crc32c
from trtllm_lite.engine.writer import EngineContent, Weight, weight_offsets, write_engine


def _parse(path: Path) -> tuple[str, dict, bytes]:
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + length].decode()
    return header, json.loads(header), data[8 + length :]


def test_safetensors_opens_it(tmp_path: Path) -> None:
    loaded = load_file(write_sample(tmp_path / "e"))
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(loaded[f"weights.{name}"], array)
    assert bytes(loaded["plan"]).decode() == plan().to_json()
    assert bytes(loaded["manifest"]).decode() == MANIFEST.to_json()


def test_everything_but_padding_is_aligned(tmp_path: Path) -> None:
    header, entries, _ = _parse(write_sample(tmp_path / "e"))
    assert (8 + len(header)) % 64 == 0
    for name, entry in entries.items():
        if not name.startswith(("__", "padding.")):
            assert entry["data_offsets"][0] % 64 == 0
    offsets = weight_offsets([array.nbytes for array in ARRAYS.values()])
    assert [entries[f"weights.{name}"]["data_offsets"][0] for name in ARRAYS] == offsets == [0, 64, 128]


def test_every_byte_is_under_a_checksum(tmp_path: Path) -> None:
    header, entries, data = _parse(write_sample(tmp_path / "e"))
    metadata = entries.pop("__metadata__")
    checksums = json.loads(metadata["checksums"])
    assert set(checksums) == set(entries)
    ranges = sorted(entry["data_offsets"] for entry in entries.values())
    assert [end for _, end in ranges] == [start for start, _ in ranges[1:]] + [len(data)]
    for name, entry in entries.items():
        assert checksums[name] == f"{crc32c(data[slice(*entry['data_offsets'])]):08x}"
    (stored,) = re.findall(r'"header_crc32c":"([0-9a-f]{8})"', header)
    assert stored == f"{crc32c(header.replace(stored, '00000000', 1).encode()):08x}"


def test_versions_and_order_of_the_header(tmp_path: Path) -> None:
    header, entries, _ = _parse(write_sample(tmp_path / "e"))
    metadata = entries["__metadata__"]
    assert (metadata["format"], metadata["format_version"], metadata["plan_version"]) == (
        "trtllm_lite.engine",
        "1",
        "24",
    )
    names = list(entries)
    assert names[0] == "__metadata__"
    assert names[1:] == sorted(names[1:])
    assert '": ' not in header


def test_the_same_contents_give_the_same_bytes(tmp_path: Path) -> None:
    assert write_sample(tmp_path / "a").read_bytes() == write_sample(tmp_path / "b").read_bytes()


def test_one_weight_at_a_time_in_file_order(tmp_path: Path) -> None:
    loaded: list[str] = []
    seen: list[tuple[int, int]] = []

    def load(name: str) -> memoryview:
        loaded.append(name)
        return memoryview(ARRAYS[name].reshape(-1).view("u1"))

    lazy = [Weight(w.name, w.dtype, w.shape, lambda name=w.name: load(name)) for w in weights()]
    write_engine(tmp_path / "e", EngineContent(lazy, "{}", "{}"), lambda *state: seen.append(state))
    assert loaded == list(ARRAYS)
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_a_weight_of_another_size_than_promised(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"weights\.w: promised 8 bytes, got 4"):
        write_engine(tmp_path / "e", EngineContent([Weight("w", "float32", (2,), lambda: bytes(4))], "{}", "{}"))


def test_an_interrupted_file_has_no_header(tmp_path: Path) -> None:
    def fail() -> bytes:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_engine(tmp_path / "e", EngineContent([*weights(), Weight("w", "float32", (2,), fail)], "{}", "{}"))
    assert not any((tmp_path / "e").read_bytes()[:8])
