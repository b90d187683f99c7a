"""A model that gguf-split has split into several files is read as one."""

from pathlib import Path

import gguf
import numpy as np
import pytest

from tests.gguf_writer import write_gguf
from tests.models import tiny_model
from trtllm_lite.common.gguf_parts import parts_of
from trtllm_lite.convert.gguf.file import open_gguf
from trtllm_lite.convert.sources.licence import find_licence
from trtllm_lite.convert.sources.pins import check_files
from trtllm_lite.engine_cache.recipe import Conversion, checkpoint_key
from trtllm_lite.errors import ConvertError

COUNT = 3


def write_parts(whole: Path, directory: Path, most: int = 14) -> list[Path]:
    """Write ``whole`` as files of at most ``most`` tensors, like gguf-split."""
    reader = gguf.GGUFReader(whole)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(directory / "m.gguf", architecture, split_max_tensors=most)
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            kind = field.types[0]
            writer.add_key_value(name, field.contents(), kind, field.types[-1] if kind.name == "ARRAY" else None)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(directory.glob("m-*.gguf"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mixture in one file."""
    path = tmp_path_factory.mktemp("whole") / "whole.gguf"
    return write_gguf(tiny_model("mixtral"), path, metadata={"general.license": "mit"})


@pytest.fixture
def parts(whole: Path, tmp_path: Path) -> list[Path]:
    """The same mixture, split into files in a directory of its own."""
    found = write_parts(whole, tmp_path)
    assert [path.name for path in found] == [f"m-0000{number}-of-0000{COUNT}.gguf" for number in range(1, COUNT + 1)]
    return found


@pytest.mark.parametrize("named", range(COUNT))
def test_any_part_names_the_whole_model(named: int, whole: Path, parts: list[Path]) -> None:
    one, several = open_gguf(whole), open_gguf(parts[named])
    assert (several.config, several.tokenizer, several.tensors) == (one.config, one.tokenizer, one.tensors)
    for name in one.tensors:
        np.testing.assert_array_equal(several.read(name), one.read(name))
    assert find_licence(parts[named]) == "mit"


def test_absent_parts_are_named(parts: list[Path]) -> None:
    parts[1].unlink()
    with pytest.raises(ConvertError, match=r"of 3 files of a model, and m-00002-of-00003\.gguf is not beside it"):
        open_gguf(parts[0])


def test_names_and_places_must_fit(parts: list[Path]) -> None:
    alone = parts[0].rename(parts[0].with_name("renamed.gguf"))
    with pytest.raises(ConvertError, match=r"file 1 of 1 .* found split\.no 0 and split\.count 3"):
        open_gguf(alone)
    alone.rename(parts[0])
    parts[2].write_bytes(parts[1].read_bytes())
    with pytest.raises(ConvertError, match=r"00003-of-00003\.gguf to be file 3 of 3 .* found split\.no 1"):
        open_gguf(parts[0])


def test_every_part_counts_for_checksums_and_caches(parts: list[Path]) -> None:
    with pytest.raises(ConvertError, match=r"none for its weights m-00001-of-00003\.gguf, m-00003-of-00003\.gguf"):
        check_files(parts[0], {parts[1].name: "0" * 64})
    before = checkpoint_key(parts[0], Conversion(), {})
    parts[2].write_bytes(parts[2].read_bytes() + b"\0")
    assert checkpoint_key(parts[0], Conversion(), {}) != before


@pytest.mark.parametrize("name", ["m.gguf", "m-1-of-3.gguf", "m-00001-of-00000.gguf", "m-00001-of-00003.safetensors"])
def test_other_names_are_of_one_file(name: str) -> None:
    assert parts_of(Path("models", name)) == [Path("models", name)]


@pytest.mark.parametrize("name", ["m-00009-of-00003.gguf", "m-00000-of-00003.gguf", "m-00001-of-00000.gguf", "m.gguf"])
def test_a_file_that_is_no_part_is_one_by_itself(name: str) -> None:
    assert parts_of(Path(name)) == [Path(name)]
