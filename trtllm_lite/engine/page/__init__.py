"""Renders an inspection as one HTML page; names in it come from engines, which are untrusted."""

from pathlib import Path

from trtllm_lite.engine.inspect import Inspection
from trtllm_lite.engine.inspect_text import encoder_facts, limits_of
from trtllm_lite.engine.page.charts import BAR_WIDTH, arena_map, bar
from trtllm_lite.engine.page.graph import graph
from trtllm_lite.engine.page.rows import file_rows, refusals, tactic_rows
from trtllm_lite.engine.page.what_if import what_if
from trtllm_lite.pages.document import render


def render_page(found: Inspection) -> str:
    """The page of ``found``, the same for the same inspection."""
    return render(
        Path(__file__).parent,
        found=found,
        limits=limits_of(found),
        encoder={} if found.encoder is None else encoder_facts(found.encoder),
        tactics=tactic_rows(found),
        files=list(file_rows(found)),
        memory_bar=bar({name: size for name, size in found.memory.items() if name != "total"}),
        workspace_bar=bar(found.workspace),
        bar_width=BAR_WIDTH,
        grid=what_if(found),
        arena_map=arena_map,
        graph=graph,
        refusals=refusals,
    )
