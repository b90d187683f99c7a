"""Renders self-contained HTML documents: no network, no fonts, no other files.

Names in them come from engines and reports, which are untrusted: everything is escaped, and a content security policy
lets the browser run only the document's own script and style, by their hashes, and load nothing.
"""

from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from trtllm_lite.common.printable import one_line
from trtllm_lite.common.units import counted, format_bytes
from trtllm_lite.pages import FOLDER, colors, digest, fact
from trtllm_lite.pages.charts import draw


def render(folder: Path, **values: Any) -> str:
    """The document that ``page.html`` of ``folder`` makes of ``values``, the same for the same values.

    ``page.css`` and ``page.js`` of the folder, where there are such files, follow the style and the script that all
    documents have. The templates' macros know the values, too, which may be functions.
    """
    style = colors() + _read(FOLDER, "document.css") + _read(folder, "page.css")
    script = '"use strict";\n' + _read(FOLDER, "tables.js") + _read(folder, "page.js")
    policy = f"default-src 'none'; style-src '{digest(style)}'; script-src '{digest(script)}'; "
    policy += "base-uri 'none'; form-action 'none'"
    environment = _environment(folder)
    environment.globals |= {"style": Markup(style), "script": Markup(script), "policy": policy, **values}
    return environment.get_template("page.html").render()


def _read(folder: Path, name: str) -> str:
    path = folder / name
    return path.read_text() if path.exists() else ""


def _environment(folder: Path) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([folder, FOLDER]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"bytes": format_bytes, "counted": counted, "fact": fact, "draw": draw}
    return environment


def _visible(value: Any) -> Any:
    """The text of an expression, in which invisible characters and those that reverse text are escaped."""
    return value if isinstance(value, Markup) else one_line(str(value))
