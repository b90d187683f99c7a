"""`inspect --html`: one page that shows what `inspect --json` prints, and executes no markup from an engine."""

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.unit.engine.hostile import REASON, write_hostile
from tests.unit.engine.samples import MANIFEST, write_sample
from trtllm_lite.cli import cli
from trtllm_lite.engine.manifest import Tactic
from trtllm_lite.engine.page import render_page
from trtllm_lite.engine.page.charts import BAR_WIDTH, bar
from trtllm_lite.engine.page.graph import graph
from trtllm_lite.engine.page.rows import Refusal, refusals
from trtllm_lite.engine.page.timings import Series, Timing, read_reason
from trtllm_lite.workflows.inspect import inspect_path

VOID = ("meta", "br")


class _Parsed(HTMLParser):
    """Checks that tags are closed in order; collects what would be run or loaded, and the texts of all tags."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attributes]
        self.texts.setdefault(tag, []).append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attributes]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        for tag in dict.fromkeys(self.open):
            self.texts[tag][-1] += data


def _inspect(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["inspect", *map(str, arguments)])


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> _Parsed:
    engine = write_hostile(tmp_path_factory.mktemp("page") / "engine")
    return _Parsed(render_page(inspect_path(engine)))


def test_nothing_of_an_engine_becomes_markup(hostile: _Parsed) -> None:
    assert len(hostile.texts["script"]) == len(hostile.texts["style"]) == 1
    assert "img" not in hostile.texts
    assert [name for _, name, _ in hostile.attributes if name.startswith("on") or name in ("style", "src")] == []
    links = [value for tag, name, value in hostile.attributes if name == "href"]
    assert all(re.fullmatch("#[a-z]+", link) for link in links)
    body = hostile.texts["body"][0]
    assert "<script>window.hacked = 1</script>" in body  # shown as text
    assert r"\x1b[2J\u202e<img src=x" in body


def test_the_policy_allows_the_script_and_the_style_of_the_page_alone(hostile: _Parsed) -> None:
    contents = [value for _, name, value in hostile.attributes if name == "content"]
    policy = dict(part.strip().split(" ", 1) for part in contents[0].split(";"))
    assert policy["default-src"] == "'none'"
    for tag in ("script", "style"):
        digest = base64.b64encode(hashlib.sha256(hostile.texts[tag][0].encode()).digest()).decode()
        assert policy[f"{tag}-src"] == f"'sha256-{digest}'"


def test_the_page_says_what_the_parts_are(hostile: _Parsed) -> None:
    body = " ".join(hostile.texts["body"][0].split())
    for text in (
        "6 times",
        "decode steps of up to 4 tokens",
        "(5 times): layers.*.b is read",
        "77.25 µs64 rows",
        "13.75 us by cublaslt",
        "9.5000",
        "97.00%",
        "workspace of cuBLASLt",
        "Options: build",
    ):
        assert text in body


def test_a_plain_engine_has_no_empty_sections(tmp_path: Path) -> None:
    page = _Parsed(render_page(inspect_path(write_sample(tmp_path / "rank0.engine"))))
    ids = {value for _, name, value in page.attributes if name == "id"}
    assert {"overview", "memory", "network", "fusions", "weights", "files"} <= ids
    assert not ids & {"tactics", "kernels", "expansions", "provenance"}
    assert {value[1:] for _, name, value in page.attributes if name == "href"} <= ids


def test_the_page_of_many_layers_is_small(tmp_path: Path) -> None:
    found = inspect_path(write_hostile(tmp_path / "engine"))
    many = tuple(Tactic(f"linear {n}", "tiled", REASON) for n in range(100))
    assert len(render_page(replace(found, tactics=many))) < 150_000


def test_the_command_writes_a_file_and_replaces_it(tmp_path: Path) -> None:
    engine, page = write_sample(tmp_path / "rank0.engine"), tmp_path / "page.html"
    page.write_text("old")
    result = _inspect(engine, "--html", page)
    assert (result.exit_code, result.output) == (0, f"wrote {page}\n")
    assert page.read_text() == render_page(inspect_path(engine))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "rank0.engine"]


def test_a_file_that_cannot_be_written_is_an_error_before_the_engine_is_read(tmp_path: Path) -> None:
    result = _inspect(tmp_path / "absent", "--html", tmp_path / "no" / "page.html")
    assert result.exit_code == 1
    assert "cannot write" in result.output
    assert "choose another file for --html" in result.output


@pytest.mark.parametrize("others", [["--json"], ["--kernels"], ["--diff", "other"]])
def test_a_page_is_a_page_alone(others: list[str]) -> None:
    result = _inspect("engine", "--html", "page.html", *others)
    assert result.exit_code == 2
    assert "leave --json, --kernels and --diff out" in result.output


def test_json_has_what_the_page_shows(tmp_path: Path) -> None:
    found: dict[str, Any] = json.loads(_inspect(write_hostile(tmp_path / "engine"), "--json").output)
    assert [item["launches"] for item in found["kernels"]] == [3, 12, 12]
    assert [item["cubin_bytes"] for item in found["kernels"]] == [5, 6, 6]
    (program,) = found["outlines"]
    assert [stretch["repeats"] for stretch in program["stretches"]] == [1, 6, 1]
    assert [(item["name"].split(">.")[1], item["count"]) for item in found["weights"]] == [
        ("table", 1),
        ("layers.*.weight", 12),
    ]
    assert sum(found["workspace"].values()) >= MANIFEST.memory.workspace
    assert found["provenance"]["parameters"]["build"]["max_batch_size"] == 2


@pytest.mark.parametrize(
    ("text", "words", "series"),
    [
        ("x stays in shared memory", "x stays in shared memory", []),
        (REASON, "", [("fastest on NVIDIA H200", [(8, 12.5, "13.75 us by cublaslt"), (64, 77.25, "")])]),
        (
            "measured on A: 1 rows 2 us (heuristic 3 us); nothing was faster; 4 rows 5.5 us; fastest on B: 4 rows 6 us",
            "nothing was faster",
            [("measured on A", [(1, 2.0, "heuristic 3 us"), (4, 5.5, "")]), ("fastest on B", [(4, 6.0, "")])],
        ),
        ("4 rows 5.5 us", "4 rows 5.5 us", []),
        ("on A: 4 rows 1.2.3 us", "on A: 4 rows 1.2.3 us", []),
    ],
)
def test_timings_are_read_out_of_reasons(text: str, words: str, series: list[Any]) -> None:
    found = read_reason(text)
    assert found.words == words
    assert list(found.series) == [Series(lead, tuple(Timing(*item) for item in items)) for lead, items in series]


def test_refusals_of_layers_are_together() -> None:
    alike = {f"layers.{n}.norm": f"it reads layers.{n}.x" for n in range(3)}
    assert refusals(alike | {"layers.7.norm": "it is last"}) == [
        Refusal("layers.*.norm", 3, "it reads layers.*.x"),
        Refusal("layers.7.norm", 1, "it is last"),
    ]


def test_bars_are_full() -> None:
    segments = bar({"a": 1, "b": 3, "c": 0})
    assert [(part.x, part.width, part.share) for part in segments] == [
        (0, BAR_WIDTH / 4, 0.25),
        (BAR_WIDTH / 4, 3 * BAR_WIDTH / 4, 0.75),
        (BAR_WIDTH, 0, 0),
    ]
    assert [part.width for part in bar({"a": 0})] == [0]


def test_a_graph_has_a_row_for_each_step_and_a_lane_for_each_tensor(tmp_path: Path) -> None:
    """Tensors that live at the same time have separate lanes; each dot is at a step that names the lane's tensor."""
    for outline in inspect_path(write_hostile(tmp_path / "engine")).outlines:
        steps = [step for stretch in outline.stretches for step in stretch.steps]
        drawn = graph(outline)
        assert [node.step for node in drawn.nodes] == steps
        assert [lane.tensor for lane in drawn.lanes] == list(outline.arena)
        rows = {node.y: node for node in drawn.nodes}
        for lane in drawn.lanes:
            for y in lane.ys:
                assert lane.tensor.tensor in rows[y].step.tensors
                assert lane.x <= rows[y].reach <= drawn.width
        for one, other in combinations(drawn.lanes, 2):
            assert one.x != other.x or one.bottom < other.top or other.bottom < one.top
