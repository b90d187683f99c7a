"""Renders an inspection as one self-contained HTML page: no network, no fonts, no other files.

Names in it come from engines, which are untrusted: everything is escaped, and a content security policy lets the
browser run only the page's own script and style, by their hashes, and load nothing.
"""

from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from trtllm_lite.engine.inspect import Inspection
from trtllm_lite.engine.inspect_text import limits_of
from trtllm_lite.engine.page.charts import BAR_WIDTH, arena_map, bar
from trtllm_lite.engine.page.rows import file_rows, refusals, tactic_rows
from trtllm_lite.pages import colors, digest, fact
from trtllm_lite.printable import one_line
from trtllm_lite.units import counted, format_bytes

_FOLDER = Path(__file__).parent


def render_page(found: Inspection) -> str:
    """The page of ``found``, the same for the same inspection."""
    style, script = colors() + (_FOLDER / "page.css").read_text(), (_FOLDER / "page.js").read_text()
    return (
        _environment()
        .get_template("page.html")
        .render(
            found=found,
            limits=limits_of(found),
            tactics=tactic_rows(found),
            files=list(file_rows(found)),
            memory_bar=bar({name: size for name, size in found.memory.items() if name != "total"}),
            workspace_bar=bar(found.workspace),
            style=Markup(style),
            script=Markup(script),
            policy=f"default-src 'none'; style-src '{digest(style)}'; script-src '{digest(script)}'; "
            "base-uri 'none'; form-action 'none'",
        )
    )


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"bytes": format_bytes, "counted": counted, "fact": fact, "refusals": refusals}
    environment.globals |= {"arena_map": arena_map, "bar_width": BAR_WIDTH}
    return environment


def _visible(value: Any) -> Any:
    """The text of an expression, in which invisible characters and those that reverse text are escaped."""
    return value if isinstance(value, Markup) else one_line(str(value))
