import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.rounds import rounds
from tests.unit.engine.samples import ARRAYS, MANIFEST, plan, write_sample
from trtllm_lite._core import crc32c
from trtllm_lite.engine.reader import read_engine
from trtllm_lite.errors import EngineError


def _reseal(data: bytes, old: bytes, new: bytes) -> bytes:
    """Replace bytes of the header and make its padding, length and checksum right again, as an attacker would."""
    length = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + length].rstrip().replace(old, new, 1)
    header = header.ljust(-(-(8 + len(header)) // 64) * 64 - 8)
    place = header.index(b'"header_crc32c":"') + len(b'"header_crc32c":"')
    zeroed = header[:place] + b"00000000" + header[place + 8 :]
    sealed = header[:place] + f"{crc32c(zeroed):08x}".encode() + header[place + 8 :]
    return len(sealed).to_bytes(8, "little") + sealed + data[8 + length :]


def test_it_reads_back_what_was_written(tmp_path: Path) -> None:
    engine = read_engine(write_sample(tmp_path / "rank0.engine"))
    assert engine.manifest == MANIFEST
    assert engine.plan == plan()
    assert {name: engine.tensors[f"weights.{name}"].shape for name in ARRAYS} == {
        name: array.shape for name, array in ARRAYS.items()
    }
    assert read_engine(tmp_path) == engine


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b'"format":"trtllm_lite.engine"', b'"format":"trtllm_lite.engina"', "is not an engine"),
        (b'"format_version":"1"', b'"format_version":"2"', "format_version 2, and this installation reads 1"),
        (b'"plan_version":"24"', b'"plan_version":"99"', "plan_version 99, and this installation reads 24"),
        (b'"shape":[7]', b'"shape":[8]', r"expected the entry weights\.odd to start at 0 and to match its shape"),
        (b'"shape":[7]', b'"shape":[-]', "expected JSON"),
        (b'"dtype":"F16"', b'"dtype":"F17"', "no valid dtype"),
        (b'"data_offsets":[0,28]', b'"data_offsets":[8,36]', "to start at 0"),
        (b'"data_offsets":[0,28]', b'"dataxoffsets":[0,28]', "unknown: dataxoffsets"),
        (b'"manifest":', b'"manifesto"', "expected JSON"),
        (b'"manifest":{', b'"manifess":{', "expected an entry manifest"),
    ],
)
def test_a_forged_header_is_one_clear_error(old: bytes, new: bytes, message: str, tmp_path: Path) -> None:
    path = write_sample(tmp_path / "e")
    path.write_bytes(_reseal(path.read_bytes(), old, new))
    with pytest.raises(EngineError, match=message):
        read_engine(path)


def test_an_absurd_rank_costs_no_time(tmp_path: Path) -> None:
    path = write_sample(tmp_path / "e")
    path.write_bytes(_reseal(path.read_bytes(), b'"shape":[7]', b'"shape":[' + b"9," * 10**6 + b"9]"))
    start = time.monotonic()
    with pytest.raises(EngineError, match="no valid dtype, shape or range"):
        read_engine(path)
    assert time.monotonic() - start < 20


@pytest.mark.parametrize("keep", [0, 7, 8, 100, -1])
def test_a_truncated_file(keep: int, tmp_path: Path) -> None:
    path = write_sample(tmp_path / "e")
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(EngineError, match="truncated"):
        read_engine(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=rounds(200), deadline=None)
@given(data=st.data())
def test_a_flipped_bit_is_found_or_lies_in_a_weight(data: st.DataObject, tmp_path: Path) -> None:
    path = write_sample(tmp_path / "e")
    content = bytearray(path.read_bytes())
    header_end = 8 + int.from_bytes(content[:8], "little")
    json_start = header_end + 256  # the weights and their padding, which the C++ reader checks, are 256 bytes
    position = data.draw(st.integers(0, header_end - 1) | st.integers(json_start, len(content) - 1))
    content[position] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    try:
        read_engine(path)
    except EngineError:
        return
    # Between plan and manifest lie bytes of padding, which carry no meaning.
    assert not content[position] & (content[position] - 1)


def test_paths_that_are_no_engine(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="does not exist: check the path"):
        read_engine(tmp_path / "nowhere")
    with pytest.raises(EngineError, match=r"that holds rank0\.engine\), but .* holds none"):
        read_engine(tmp_path)
