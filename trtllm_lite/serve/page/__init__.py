"""Makes the built-in page, on which people try prompts. It runs only its own script, and contacts only the server."""

from pathlib import Path

from trtllm_lite.pages import colors, digest

_FOLDER = Path(__file__).parent
_SCRIPTS = ("markdown.js", "settings.js", "requests.js", "page.js")


def render_page() -> tuple[bytes, dict[str, str]]:
    """The page, and its headers."""
    style = colors() + (_FOLDER / "page.css").read_text()
    script = '"use strict";\n' + "".join((_FOLDER / name).read_text() for name in _SCRIPTS)
    page = (_FOLDER / "page.html").read_text().replace("/* style */", style).replace("/* script */", script)
    return page.encode(), page_headers(style, script)


def page_headers(style: str, script: str = "") -> dict[str, str]:
    """The headers of a page with this style and this script, which may fetch only from its server."""
    scripts = f"script-src '{digest(script)}'; " if script else ""
    policy = (
        f"default-src 'none'; style-src '{digest(style)}'; {scripts}connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }
