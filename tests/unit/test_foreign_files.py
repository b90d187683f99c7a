"""Files from elsewhere are plain, of bounded size, and where they should be."""

import hashlib
import os
from pathlib import Path

import pytest

from trtllm_lite.common.foreign_files import is_plain_file, open_foreign, read_foreign, sha256_of


def test_plain_files_are_read_as_they_are(tmp_path: Path) -> None:
    content = os.urandom(1000)
    (tmp_path / "plain").write_bytes(content)
    assert read_foreign(tmp_path / "plain", 1000) == content
    assert sha256_of(tmp_path / "plain") == hashlib.sha256(content).hexdigest()
    assert is_plain_file(tmp_path / "plain")
    with open_foreign(tmp_path / "plain", 1000) as file:
        assert file.read(10) == content[:10]


def test_larger_files_name_their_size_and_the_limit(tmp_path: Path) -> None:
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(OSError, match=r"1,099,511,627,776 bytes, which exceeds the limit of 999") as raised:
        read_foreign(tmp_path / "sparse", 999)
    assert raised.value.filename == str(tmp_path / "sparse")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_plain_file_is_refused_at_once(tmp_path: Path, make) -> None:
    make(tmp_path / "odd")
    assert not is_plain_file(tmp_path / "odd")
    for read in (lambda path: read_foreign(path, 1 << 20), sha256_of):
        with pytest.raises(OSError, match="not a plain file"):
            read(tmp_path / "odd")


@pytest.mark.parametrize("name", ["a\0b", "a" * 5000, "absent", "a/" * 3000])
def test_names_of_no_file_are_errors_of_the_system(tmp_path: Path, name: str) -> None:
    assert not is_plain_file(tmp_path / name)
    for inside in (None, tmp_path):
        with pytest.raises(OSError):  # noqa: PT011 - whichever of its kinds
            read_foreign(tmp_path / name, 1, inside=inside)


def test_links_lead_nowhere_else_where_that_is_asked(tmp_path: Path) -> None:
    for folder in ("outside", "inside"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file").write_bytes(b"x")
    (tmp_path / "inside" / "near").symlink_to("file")
    (tmp_path / "inside" / "far").symlink_to("../outside/file")
    (tmp_path / "inside" / "folder").symlink_to("../outside")
    assert read_foreign(tmp_path / "inside" / "near", 1, inside=tmp_path / "inside") == b"x"
    assert read_foreign(tmp_path / "inside" / "far", 1) == b"x"  # a link, as in Hugging Face's cache
    for name in ("far", "folder/file", "../outside/file"):
        with pytest.raises(OSError, match="a link to a file outside"):
            read_foreign(tmp_path / "inside" / name, 1, inside=tmp_path / "inside")
