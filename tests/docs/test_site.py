"""The site of docs/ builds without a broken link, and a browser shows it without requests to other hosts."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.browser import NAMES, Page, browsing, find_browser
from tests.docs.blocks import PAGES, ROOT

BROWSER = find_browser()
needs_browser = pytest.mark.skipif(BROWSER is None, reason=f"no browser on PATH: expected {', '.join(NAMES)}")
LOADED = re.compile(r'<(?:script|link|img|iframe)[^>]* (?:src|href)="(?:https?:)?//[^"]*"')
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
BACKGROUND = "getComputedStyle(document.body).backgroundColor"
SEARCH = "[...document.querySelectorAll('div')].map(node => node.shadowRoot).find(root => root?.querySelector('input'))"


def build_site(directory: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "zensical", "build", "--strict", "-f", str(directory / "zensical.toml")]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of docs/, so that the build leaves no files in the project."""
    directory = tmp_path_factory.mktemp("site") / "docs"
    shutil.copytree(ROOT / "docs", directory, ignore=shutil.ignore_patterns("site", ".cache"))
    return directory


@pytest.fixture(scope="module")
def site(source: Path) -> Path:
    done = build_site(source)
    assert done.returncode == 0, done.stdout + done.stderr
    return source / "site"


def test_all_pages_are_in_the_navigation(site: Path) -> None:
    navigation = (ROOT / "docs" / "zensical.toml").read_text()
    for page in PAGES:
        if page.is_relative_to(ROOT / "docs"):
            assert f'"{page.relative_to(ROOT / "docs")}"' in navigation
    assert (site / "search.json").is_file()


def test_pages_load_nothing_from_other_hosts(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(PAGES) // 2
    assert [page for page in pages if LOADED.search(page.read_text())] == []


def test_links_of_the_readme_lead_somewhere() -> None:
    for page in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", (ROOT / page).read_text()):
            assert link.startswith("https://") or (ROOT / link).is_file(), f"{page}: {link}"


@pytest.mark.parametrize("link", ["none.md", "build.md#none"])
def test_a_broken_link_fails_the_build(tmp_path: Path, link: str) -> None:
    (tmp_path / "zensical.toml").write_text('[project]\nsite_name = "T"\ndocs_dir = "."\nsite_dir = "site"\n')
    (tmp_path / "build.md").write_text("# Build\n")
    (tmp_path / "index.md").write_text("# T\n\n[a](build.md)\n")
    assert build_site(tmp_path).returncode == 0
    (tmp_path / "index.md").write_text(f"# T\n\n[a]({link})\n")
    assert build_site(tmp_path).returncode != 0


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(site))) as files:
        thread = Thread(target=files.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{files.server_port}/"
        files.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Page]:
    with browsing(str(BROWSER)) as page:
        yield page


@needs_browser
@pytest.mark.parametrize("width", [1440, 390])
def test_pages_fit_into_windows_of_both_sizes(browser: Page, address: str, width: int) -> None:
    browser.resize(width)
    colours = set()
    for scheme in ("light", "dark"):
        browser.prefer(scheme)
        for path in ("", "results/"):
            browser.open_url(address + path)
            assert browser.evaluate(OVERFLOW) <= 0, path
            colours.add((scheme, browser.evaluate(BACKGROUND)))
    assert len(colours) == len({colour for _, colour in colours}) == 2
    assert browser.complaints == []
    assert all(url.startswith((address, "data:", "blob:")) for url in browser.requests)


@needs_browser
def test_the_search_finds_a_section(browser: Page, address: str) -> None:
    browser.resize(1440)
    browser.open_url(address)
    browser.wait_for("document.querySelector('.md-search__button') !== null")
    browser.evaluate("document.querySelector('.md-search__button').click()")
    browser.wait_for(f"{SEARCH}?.activeElement?.tagName === 'INPUT'")
    for letter in "deterministic":
        browser.call("Input.dispatchKeyEvent", type="char", text=letter)
    browser.wait_for(f"{SEARCH}.querySelector('ol').innerText.includes('The same bits in any company')")
