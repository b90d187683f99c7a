"""What a Python prompt and a notebook show of embeddings and statistics."""

import json
import pickle
from html.parser import HTMLParser

import numpy as np

from trtllm_lite.pages import fact_table
from trtllm_lite.runtime.api.embedding import EmbeddingOutput
from trtllm_lite.runtime.session.stats import LatencyLog, make_stats

COUNTS = {
    **dict.fromkeys(
        [
            *("num_free_host_blocks", "num_recompute_preemptions", "num_swap_preemptions", "num_recomputed_tokens"),
            *("num_failed_steps", "num_scheduled_tokens", "num_late_rows", "host_seconds", "num_drafts"),
        ],
        0,
    ),
    "num_running": 3,
    "num_waiting": 1200,
    "num_blocks": 64,
    "num_used_blocks": 16,
    "lookup_tokens": 200,
    "hit_tokens": 50,
    "num_steps": 17,
    "num_generated_tokens": 4321,
    "step_seconds": 1.5,
    "decode_host_times": {step * 1e-6: 1 for step in range(500)},
    "num_drafted": [],
    "num_accepted": [],
}


class _Cells(HTMLParser):
    """The texts of a table's cells, unescaped, and the tags of the page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.tags: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, _: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag in ("th", "td"):
            self.cells.append("")

    def handle_data(self, data: str) -> None:
        if self.cells:
            self.cells[-1] += data


def test_an_embedding_is_a_list_that_shows_its_beginning() -> None:
    values = np.random.default_rng(0).normal(size=768).tolist()
    output = EmbeddingOutput(values)
    assert output == values
    assert json.loads(json.dumps(output)) == values
    assert pickle.loads(pickle.dumps(output)) == values
    assert repr(output).startswith(f"<EmbeddingOutput of 768 numbers: {values[0]:.4g}, {values[1]:.4g}")
    assert len(repr(output)) < 120
    assert repr(EmbeddingOutput([0.5])) == "<EmbeddingOutput of 1 number: 0.5>"
    cells = _Cells(output._repr_html_()).cells
    assert cells[cells.index("length") + 1] == f"{np.linalg.norm(values):.6g}"


def test_statistics_show_what_people_look_for() -> None:
    stats = make_stats(COUNTS, LatencyLog(), loaded_loras=("<b>", *map(str, range(400))))
    assert repr(stats).startswith("<Stats: requests 3 running, 1,200 waiting, KV cache 16 of 64 blocks, ")
    assert "25.0%" in repr(stats)
    assert "17 in 1.50 s" in repr(stats)
    assert len(repr(stats)) < 400
    shown = _Cells(stats._repr_html_())
    assert shown.cells[shown.cells.index("generated tokens") + 1] == "4,321"
    assert "<b>" in shown.cells[-1]
    assert "b" not in shown.tags


def test_tables_escape_names_and_control_characters() -> None:
    shown = _Cells(fact_table("<i>", {"<script>": "a\x1b[2Jb", "pairs": {"x": [1, None], "y": True}}))
    assert shown.tags == {"table", "caption", "tr", "th", "td"}
    assert shown.cells == ["<script>", "a\\x1b[2Jb", "pairs", "x 1, none, y yes"]
