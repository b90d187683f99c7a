"""Build files: what they hold, and errors with the file, the line and the remedy."""

import hashlib
import os
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.models import save_tiny_model
from trtllm_lite.cli import cli
from trtllm_lite.cli.build import build
from trtllm_lite.cli.build_file import read_build_file
from trtllm_lite.errors import BuildError
from trtllm_lite.workflows.inspect import inspect_path

CONFIGS = Path(__file__).parents[2] / "configs" / "builds"


def _read(path: Path, text: str) -> Any:
    path.write_text(text)
    return read_build_file(path, build)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_ours_are_valid(path: Path) -> None:
    file = read_build_file(path, build)
    assert file.build["target"]
    assert (file.model is None) == ("model_config" in file.build)


def test_values_are_those_of_the_options(tmp_path: Path) -> None:
    file = _read(
        tmp_path / "job.yaml",
        """
model:
  model_dir: acme/model
  revision: 1.0
  sha256:
    a.safetensors: 00ff
    b.safetensors: 11ee
  dequantize: true
build:
  target: [sm_80, sm_90]
  max_batch_size: 4
  quantize_override: ['layers.0.*=full_prec']
""",
    )
    expected = {"model_dir": "acme/model", "revision": "1.0", "dequantize": True, "dtype": "auto"}
    assert expected.items() <= file.conversion().items()
    assert file.conversion()["sha256"] == ("a.safetensors=00ff", "b.safetensors=11ee")
    assert file.build["target"] == ["sm_80", "sm_90"]
    assert file.lines["max_batch_size"] == 11


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"job\.yaml: expected the sections model and build"),
        ("- a", r"job\.yaml: expected the sections model and build"),
        ("build: [", r"job\.yaml:1: this is not YAML .*: correct it"),
        pytest.param("build: " + "[" * 3000, r"job\.yaml is nested more deeply than a build file may be", id="nested"),
        ("limits:\n  a: 1", r"job\.yaml:1: 'limits' is no section: expected model, build and checks"),
        ("checks: 4", r"job\.yaml:1: expected checks to hold reproducible \(true or false\) and answers"),
        ("checks:\n  speed: 4", r"job\.yaml:2: 'speed' is no check: expected reproducible .* and answers"),
        ("checks:\n  reproducible: 1", r"job\.yaml:2: reproducible: expected true or false"),
        ("checks:\n  answers: Paris", r"job\.yaml:2: answers: expected a prompt, a colon and a text"),
        ("build:\n  target: cpu\nchecks:\n  answers:\n    a: []", r"job\.yaml:5: answers: expected a value"),
        (
            "checks:\n  answers: {a: b}",
            r"job\.yaml:2: answers: only engines of `target: cpu`",
        ),
        (
            "build:\n  target: sm_90\nchecks:\n  answers: {a: b}",
            r"job\.yaml:4: answers: only engines of",
        ),
        ("build: 4", r"job\.yaml:1: expected build to hold options of `trtllm-lite build`"),
        ("model:\n  dtype: float16", r"the section model has no model_dir: add"),
        ("model:\n  output_dir: a", r"job\.yaml:2: 'output_dir' is no option of `trtllm-lite convert`"),
        ("build:\n  max_batch_sise: 4", r"job\.yaml:2: 'max_batch_sise' .*: did you mean max_batch_size\?"),
        ("build:\n  config: a", r"job\.yaml:2: 'config' is no option"),
        ("build:\n  max_batch_size: many", r"job\.yaml:2: max_batch_size: 'many' is not a valid integer: .* --help"),
        ("build:\n  qformat: int5", r"job\.yaml:2: qformat: 'int5' is not one of .*: .* --help"),
        ("build:\n  max_batch_size:", r"job\.yaml:2: max_batch_size: expected a value: add it, or remove the line"),
        ("build:\n  max_batch_size: [4]", r"job\.yaml:2: max_batch_size: expected a value"),
        ("build:\n  strip_plan: 1", r"job\.yaml:2: strip_plan: expected true or false"),
        ("build:\n  target: cpu\n\n  target: sm_90", r"job\.yaml:4: 'target' stands on line 2, too: keep one"),
        ("? [a]\n: b", r"job\.yaml:1: expected a name before the colon"),
    ],
)
def test_errors_give_the_line_and_the_remedy(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=message):
        _read(tmp_path / "job.yaml", text)


def test_checks_are_read(tmp_path: Path) -> None:
    text = "checks:\n  reproducible: false\n  answers:\n    One and one is: 2\nbuild:\n  target: [cpu]\n"
    checks = {"reproducible": False, "answers": {"One and one is": "2"}}
    assert _read(tmp_path / "job.yaml", text).checks == checks
    assert _read(tmp_path / "job.yaml", "build: {}").checks == {}


def test_nothing_is_made_of_a_tag(tmp_path: Path) -> None:
    file = _read(tmp_path / "job.yaml", "build: {target: !!python/object/apply:os.system ls}")
    assert file.build == {"target": ["ls"]}


def test_files_that_cannot_be_read_are_errors(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"cannot read the build file .*check the path"):
        read_build_file(tmp_path / "absent.yaml", build)
    with pytest.raises(BuildError, match="larger than the limit of build files, 1,048,576 bytes"):
        _read(tmp_path / "job.yaml", "#" * (1 << 20) + "\n")
    (tmp_path / "job.yaml").write_bytes(b"build: \xff")
    with pytest.raises(BuildError, match=r"job\.yaml.*this is not YAML"):
        read_build_file(tmp_path / "job.yaml", build)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A build file for a tiny model."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    save_tiny_model("llama", tmp_path / "model")
    digest = hashlib.sha256((tmp_path / "model" / "model.safetensors").read_bytes()).hexdigest()
    path = tmp_path / "job.yaml"
    path.write_text(f"""
model:
  model_dir: {tmp_path / "model"}
  sha256:
    model.safetensors: {digest}
build:
  target: cpu
  max_batch_size: 2
  max_input_len: 8
  max_seq_len: 16
""")
    return path


def _build(job: Path, *arguments: str) -> str:
    result = CliRunner().invoke(cli, ["build", "--config", str(job), "--output_dir", str(job.parent / "e"), *arguments])
    return result.output


def test_a_file_says_what_the_command_line_says_and_the_command_line_counts_more(job: Path) -> None:
    out = job.parent / "e"
    assert "built" in _build(job)
    assert inspect_path(out).limits["max_batch_size"] == 2
    assert "built" in _build(job, "--max_batch_size", "3")
    limits = {"max_batch_size": 3, "max_input_len": 8, "max_seq_len": 16, "max_num_tokens": 24}
    assert inspect_path(out).limits == {**limits, "max_draft_len": 0, "max_beam_width": 3}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("max_seq_len: 16", "max_seq_len: 9999", r"job\.yaml:10: max_seq_len is 9999"),
        ("max_seq_len: 16", "group_size: 64", r"job\.yaml:10: --group_size is given, and full_prec"),
        ("target: cpu", "target: sm_1", r"job\.yaml:7: .*sm_1"),
        (
            "target: cpu",
            "model_config: a.json",
            r"job\.yaml:7: the build file has a section model: leave checkpoint_dir and",
        ),
        ("  sha256", "  revision: v1\n  sha256", r"job\.yaml:4: revision 'v1' is given, and .* is here"),
        ("model.safetensors: ", "model.safetensors: 0", r"job\.yaml:4: sha256 of model\.safetensors: expected 64"),
        ("model.safetensors: ", "config.json: ", r"job\.yaml:4: sha256 has .* none for its weights model\.saf"),
        ("model.safetensors: ", "weights.gguf: ", r"job\.yaml:4: sha256 names 'weights\.gguf', and .* no such file"),
    ],
)
def test_errors_of_the_build_give_the_line_of_what_they_name(job: Path, old: str, new: str, message: str) -> None:
    text = job.read_text()
    assert old in text
    job.write_text(text.replace(old, new))
    output = " ".join(_build(job).split())
    assert re.search(message, output), output
    assert not (job.parent / "e").exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--target", "sm_1"), r"Error: [^:]*sm_1"),
        (("--max_seq_len", "9999"), r"Error: max_seq_len is 9999"),
        (("--group_size", "64"), r"Error: .*job\.yaml: --group_size is given"),  # which the file does not have
    ],
)
def test_no_line_is_blamed_for_what_the_command_line_says(job: Path, given: tuple[str, str], message: str) -> None:
    output = " ".join(_build(job, *given).split())
    assert re.search(message, output), output
    assert "job.yaml:" not in output.replace("job.yaml: ", "")


def test_another_model_than_the_checksums_is_refused(job: Path) -> None:
    with open(job.parent / "model" / "model.safetensors", "ab") as file:
        file.write(b"\0")
    output = " ".join(_build(job).split())
    assert "job.yaml:4: the sha256 of" in output
    assert "fetch the model again, or, if it was changed on purpose, give the new checksum" in output


def test_a_checkpoint_is_that_of_the_checked_file(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that differs in the middle alone has the same ends, size and date, and must still be told apart."""
    monkeypatch.setattr("trtllm_lite.engine_cache.recipe._WHOLE", 0)
    monkeypatch.setattr("trtllm_lite.engine_cache.recipe._END", 16)
    assert "built" in _build(job)
    first = (job.parent / "e" / "rank0.engine").read_bytes()
    weights = job.parent / "model" / "model.safetensors"
    data, status = bytearray(weights.read_bytes()), weights.stat()
    data[-64:-32] = bytes(32)
    old, new = (hashlib.sha256(content).hexdigest() for content in (weights.read_bytes(), data))
    weights.write_bytes(data)
    os.utime(weights, ns=(status.st_atime_ns, status.st_mtime_ns))
    job.write_text(job.read_text().replace(old, new))
    assert "built" in _build(job)
    assert (job.parent / "e" / "rank0.engine").read_bytes() != first


@pytest.mark.parametrize("checked", [True, False], ids=["of the checksums", "of the cache"])
def test_a_model_that_cannot_be_read_is_an_error(job: Path, checked: bool) -> None:
    unreadable = job.parent / "model" / "model.safetensors"
    unreadable.unlink()
    unreadable.symlink_to("/proc/self/mem")  # a file of which no byte can be read, not even by root
    if not checked:
        job.write_text(re.sub(r"  sha256:\n.*\n", "", job.read_text()))
    output = " ".join(_build(job).split())
    assert re.search(r"job\.yaml.*: cannot read .*: Input/output error: check the path and its permissions", output)
    assert "unexpected" not in output


def test_an_absent_path_is_said_to_count_from_the_working_directory(job: Path) -> None:
    job.write_text(job.read_text().replace(str(job.parent / "model"), "absent/model.gguf/here"))
    output = " ".join(_build(job).split())
    assert re.search(r"'absent/model\.gguf/here' does not exist: .*relative to the working directory", output), output


def test_a_model_with_an_impossible_name_is_an_error(job: Path) -> None:
    job.write_text(job.read_text().replace(str(job.parent / "model"), "a" * 300))
    output = " ".join(_build(job).split())
    assert re.search(r"job\.yaml.*: cannot read a+.*: File name too long: check the path", output), output
