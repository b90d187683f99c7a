"""The safetensors reader and writer against the reference package, and on damaged files."""

import json
import os
import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from tests.rounds import rounds
from trtllm_lite.convert.sources.safetensors_file import SafetensorsFile, TensorInfo, plan_layout, write_safetensors
from trtllm_lite.errors import ConvertError


def _file(path: Path, header: object, data: bytes = bytes(64)) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def test_reads_what_the_reference_writes(tmp_path: Path) -> None:
    tensors = {
        "a": torch.randn(3, 5),
        "b": torch.randn(7).to(torch.bfloat16),
        "c": torch.randn(2, 1).to(torch.float16),
        "d": torch.zeros(0, 4),
    }
    save_file(tensors, tmp_path / "x.safetensors", metadata={"format": "pt"})
    file = SafetensorsFile(tmp_path / "x.safetensors")
    assert set(file.tensors) == set(tensors)
    for name, tensor in tensors.items():
        array = file.read(name)
        assert array.shape == tuple(tensor.shape)
        np.testing.assert_array_equal(array.astype(np.float32), tensor.float().numpy())
    assert file.read("b").dtype == ml_dtypes.bfloat16


def test_the_reference_reads_what_we_write(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    arrays = {
        "odd": random.standard_normal(3, np.float32),
        "half": random.standard_normal((5, 3)).astype(np.float16),
        "aligned": random.standard_normal((8, 16), np.float32),
        "brain": random.standard_normal((4, 32)).astype(ml_dtypes.bfloat16),
    }
    names = {np.dtype(np.float32): "float32", np.dtype(np.float16): "float16"}
    infos = {name: TensorInfo(names.get(array.dtype, "bfloat16"), array.shape) for name, array in arrays.items()}
    layout = plan_layout(infos)
    write_safetensors(tmp_path / "x.safetensors", layout, lambda name: arrays[name])
    raw = (tmp_path / "x.safetensors").read_bytes()
    assert len(raw) == layout.num_bytes
    assert {name: layout.offsets[name] % 64 for name in ("aligned", "brain")} == {"aligned": 0, "brain": 0}
    assert all(layout.offsets[name] % array.itemsize == 0 for name, array in arrays.items())
    for name, tensor in load_file(tmp_path / "x.safetensors").items():
        np.testing.assert_array_equal(tensor.float().numpy(), arrays[name].astype(np.float32))
        offset = layout.offsets[name]
        assert raw[offset : offset + arrays[name].nbytes] == arrays[name].tobytes()


_GOOD = {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64]}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({**_GOOD, "data_offsets": [0, 68]}, "only 64 bytes of data while x ends at byte 68"),
        ({**_GOOD, "data_offsets": [4, 64]}, "60 bytes for x of shape"),
        ({**_GOOD, "data_offsets": [-4, 60]}, "malformed entry for x"),
        ({**_GOOD, "data_offsets": [0]}, "malformed entry for x"),
        ({**_GOOD, "shape": [4, True]}, "malformed entry for x"),
        ({**_GOOD, "shape": [2**40, 2**40]}, "64 bytes for x of shape"),
        ({**_GOOD, "shape": [1] * 200_000}, "x with 200000 dimensions, at most 8 expected"),
        ({"dtype": "F32"}, "malformed entry for x"),
        ("F32", "malformed entry for x"),
        ({**_GOOD, "dtype": "F8_E5M2"}, "stores x as F8_E5M2, expected one of F32, F16, BF16"),
        ({**_GOOD, "dtype": 7}, "stores x as 7"),
        ({**_GOOD, "dtype": ["F32"]}, "stores x as"),
    ],
)
def test_wrong_entries_are_clear_errors(tmp_path: Path, entry: object, message: str) -> None:
    with pytest.raises(ConvertError, match=message):
        SafetensorsFile(_file(tmp_path / "x.safetensors", {"x": entry}))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "only 0 bytes"),
        (b"\x00" * 7, "only 7 bytes"),
        (struct.pack("<Q", 2**60) + b"{}", "a header of 1152921504606846976 bytes in a file of 10"),
        (struct.pack("<Q", 2) + b"[]", "not a JSON object"),
        (struct.pack("<Q", 2) + b"{x", "not JSON"),
        (struct.pack("<Q", 2) + b"\xff\xff", "not JSON"),
        (struct.pack("<Q", 100_000) + b"[" * 100_000, "not JSON"),
    ],
)
def test_damaged_headers_are_clear_errors(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(ConvertError, match=message):
        SafetensorsFile(tmp_path / "x.safetensors")


def test_a_pipe_is_no_weights_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.safetensors")
    with pytest.raises(OSError, match="not a plain file"):
        SafetensorsFile(tmp_path / "x.safetensors")


def test_truncation_anywhere_is_a_clear_error(tmp_path: Path) -> None:
    save_file({"a": torch.randn(5, 7), "b": torch.randn(3)}, tmp_path / "x.safetensors")
    whole = (tmp_path / "x.safetensors").read_bytes()
    for length in range(0, len(whole), 5):
        (tmp_path / "y.safetensors").write_bytes(whole[:length])
        with pytest.raises(ConvertError, match="complete safetensors file"):
            SafetensorsFile(tmp_path / "y.safetensors")


@settings(max_examples=rounds(200), deadline=None)
@given(position=st.integers(0, 300), value=st.integers(0, 255))
def test_flipped_header_bytes_never_crash(position: int, value: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = _file(
        tmp_path_factory.getbasetemp() / "flipped.safetensors",
        {"x": _GOOD, "y": {**_GOOD, "dtype": "BF16", "shape": [32]}},
    )
    raw = bytearray(path.read_bytes())
    raw[position % len(raw)] = value
    path.write_bytes(raw)
    try:
        file = SafetensorsFile(path)
    except ConvertError:
        return
    for name in file.tensors:
        file.read(name).tobytes()
