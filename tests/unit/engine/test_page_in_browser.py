"""The page of `inspect --html` in a real browser."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pytest

from tests.browser import NAMES, Page, browsing, find_browser
from tests.unit.engine.hostile import write_hostile
from trtllm_lite._core import KvGeometry
from trtllm_lite.engine.page import render_page
from trtllm_lite.workflows.inspect import inspect_path

BROWSER = find_browser()
WIDTHS = (390, 1280)

pytestmark = pytest.mark.skipif(BROWSER is None, reason=f"no browser on PATH: expected {', '.join(NAMES)}")

ROWS = """(table => [...document.querySelectorAll(`${table} > tbody > tr`)]
    .filter(row => row.checkVisibility()).map(row => [...row.cells].map(cell => cell.innerText.trim())))"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The output of `inspect --json` for an engine, and the path of its page."""
    directory = tmp_path_factory.mktemp("browser")
    inspection = inspect_path(write_hostile(directory / "engine"))
    (directory / "page.html").write_text(render_page(inspection))
    return {**json.loads(json.dumps(asdict(inspection))), "page": directory / "page.html"}


@pytest.fixture(scope="module")
def browser() -> Iterator[Page]:
    assert BROWSER is not None
    with browsing(BROWSER) as page:
        yield page


@pytest.fixture
def page(browser: Page, found: dict[str, Any]) -> Page:
    """The page, just opened."""
    browser.resize(1280)
    browser.open(found["page"])
    return browser


def _rows(page: Page, table: str) -> list[list[str]]:
    return page.evaluate(f"{ROWS}({json.dumps('#' + table)})")


def test_it_opens_without_complaints_or_requests(page: Page, found: dict[str, Any]) -> None:
    assert page.evaluate("document.querySelectorAll('table').length") > 8
    assert page.evaluate("typeof window.hacked") == "undefined"
    assert page.evaluate("document.images.length") == 0
    assert page.complaints == []
    assert page.requests == {found["page"].as_uri()}


def test_the_policy_stops_what_is_injected(page: Page, found: dict[str, Any]) -> None:
    """The policy holds even if escaping fails: it blocks scripts, and images of other hosts."""
    page.evaluate("document.body.append(Object.assign(document.createElement('script'), {text: 'window.hacked = 1'}))")
    page.evaluate("document.body.append(Object.assign(new Image(), {src: 'http://127.0.0.1:9/x.png'}))")
    page.open(found["page"])
    stopped = [complaint for complaint in page.complaints if "Content Security Policy" in complaint]
    assert len(stopped) == 2
    assert page.requests == {found["page"].as_uri()}
    page.complaints.clear()


def test_tables_have_the_rows_of_the_json(page: Page, found: dict[str, Any]) -> None:
    for table, rows in (
        ("tactic-table", found["tactics"]),
        ("kernel-table", found["kernels"]),
        ("weight-table", found["weights"]),
        ("fusion-table", found["fusions"]),
        ("expansion-table", found["expansions"]),
        ("file-table", found["file_bytes"]),
        ("cache-groups", found["cache_use"]["groups"]),
        ("material-table", found["provenance"]["materials"]),
    ):
        assert len(_rows(page, table)) == len(rows) > 0, table
    assert [row[0] for row in _rows(page, "weight-table")] == [weight["name"] for weight in found["weights"]]
    (program,) = found["outlines"]
    steps = [row for row in _rows(page, "steps-1") if len(row) > 1]
    assert [row[0] for row in steps] == [str(number) for number in range(1, 8)]
    names = [step["name"] for stretch in program["stretches"] for step in stretch["steps"]]
    assert [row[1] for row in steps] == [f"{name} launch" for name in names]


def test_heads_sort(page: Page) -> None:
    """Numeric columns sort by number; cells without a number come last."""
    original = _rows(page, "tactic-table")
    head = "document.querySelectorAll('#tactic-table thead th')"
    for column, expected in ((0, sorted), (2, None)):
        page.evaluate(f"{head}[{column}].querySelector('button').click()")
        ascending = [row[column] for row in _rows(page, "tactic-table")]
        assert page.evaluate(f"{head}[{column}].getAttribute('aria-sort')") == "ascending"
        page.evaluate(f"{head}[{column}].querySelector('button').click()")
        descending = [row[column] for row in _rows(page, "tactic-table")]
        assert sorted(ascending) == sorted(descending) == sorted(row[column] for row in original)
        if expected is not None:
            assert [text.split()[1] for text in ascending[-3:]] == ["9", "20", "100"]  # sorted as text, 9 would be last
            assert descending == ascending[::-1]
        else:
            assert [bool(text) for text in ascending] == [bool(text) for text in descending] == [True] * 3 + [False] * 9


def test_what_fits_a_device_is_marked(page: Page, found: dict[str, Any]) -> None:
    """Each cell is the memory outside the KV cache plus the cache blocks of its batch, as the runtime counts them."""
    limits, cache = found["limits"], found["kv_cache"]
    cells = page.evaluate("""[...document.querySelectorAll('#what-if-table tbody tr')].map(row =>
        [...row.querySelectorAll('td')].map(cell => Number(cell.dataset.value)))""")
    groups = [(group["kind"], group["window"], group["blocks"]) for group in found["cache_use"]["groups"]]
    geometry = KvGeometry(cache["tokens_per_block"], groups, limits["max_num_tokens"])
    blocks = geometry.most_blocks_of_batch(limits["max_batch_size"], limits["max_seq_len"])
    others = found["memory"]["weights"] + found["memory"]["workspace"]
    assert cells[-1][-1] == others + blocks * cache["bytes_per_block"] == max(map(max, cells))
    assert cells == [sorted(row) for row in cells]
    flat = [number for row in cells for number in row]
    gib = (min(flat) + max(flat)) / 2 / 2**30
    page.evaluate(f"""(input => {{ input.value = {gib}; input.dispatchEvent(new Event("input")); }})
        (document.getElementById("device-memory"))""")
    fitting = sum(number <= gib * 2**30 for number in flat)
    assert page.evaluate("document.querySelectorAll('.fits').length") == fitting
    assert (
        page.evaluate("document.querySelector('.what-if [role=status]').textContent") == f"{fitting} of {len(flat)} fit"
    )


def test_the_filter_keeps_rows_that_have_all_words(page: Page) -> None:
    page.evaluate("""(input => { input.value = "NORM 100"; input.dispatchEvent(new Event("input")); })
        (document.querySelector("#tactics input"))""")
    assert [row[0].split()[1] for row in _rows(page, "tactic-table")] == ["100"]
    assert page.evaluate("document.querySelector('#tactics [role=status]').textContent") == "1 of 12"


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_wider_than_the_window(page: Page, width: int) -> None:
    page.resize(width)
    page.evaluate("document.querySelectorAll('details').forEach(item => { item.open = true; })")
    assert page.evaluate("[innerWidth, document.documentElement.scrollWidth <= innerWidth]") == [width, True]
    cut = """[...document.querySelectorAll('body *')].filter(item => !item.closest('svg')
        && item.scrollWidth > item.clientWidth + 1 && getComputedStyle(item).overflowX === 'visible'
        && getComputedStyle(item).display !== 'inline').map(item => item.outerHTML.slice(0, 200))"""
    assert page.evaluate(cut) == []


def test_text_is_readable_in_light_and_dark(page: Page) -> None:
    """WCAG's contrast of 4.5 between text and the card that it stands on."""
    colors = "['body', '.card', '.dim'].map(name => getComputedStyle(document.querySelector(name)))"
    for scheme in ("light", "dark"):
        page.prefer(scheme)
        ((text, _), (_, card), (dim, _)) = page.evaluate(f"{colors}.map(style => [style.color, style.backgroundColor])")
        light_card = _luminance(card) > 0.5
        assert light_card is (scheme == "light")
        assert min(_contrast(text, card), _contrast(dim, card)) >= 4.5
        assert page.screenshot().startswith(b"\x89PNG")


def _luminance(color: str) -> float:
    """Relative luminance of ``rgb(r, g, b)``: https://www.w3.org/TR/WCAG22/#dfn-relative-luminance."""
    parts = [int(part) / 255 for part in color[color.index("(") + 1 : -1].split(",")[:3]]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(one: str, other: str) -> float:
    dark, light = sorted((_luminance(one), _luminance(other)))
    return (light + 0.05) / (dark + 0.05)
