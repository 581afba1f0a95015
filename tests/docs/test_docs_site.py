"""The documentation site: all public names and pages are in it, its links lead somewhere, a browser finds names."""

import functools
import re
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

import pytest
from docs_pages import ROOT
from selenium.webdriver import Chrome

import holdfast as hf
import holdfast.testing
from waiting import until

PUBLIC = [
    *(f"holdfast.api.{name}" for name in hf.__all__),
    *(f"holdfast.testing.{name}" for name in holdfast.testing.__all__),
]


def test_every_public_name_is_on_a_single_page_of_the_reference() -> None:
    pages = [page.read_text() for page in sorted((ROOT / "docs" / "reference").rglob("*.md"))]
    named = [name for text in pages for name in re.findall(r"^::: (\S+)", text, re.MULTILINE)]
    assert sorted(named) == sorted(PUBLIC)


def test_every_page_is_in_the_navigation() -> None:
    nav = repr(tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"])
    docs = ROOT / "docs"
    pages = {str(page.relative_to(docs)) for page in docs.rglob("*.md")} - {"README.md"}
    lists_its_pages = {page for page in pages if page.startswith("decisions/")} - {"decisions/README.md"}
    assert not [page for page in sorted(pages - lists_its_pages) if f"'{page}'" not in nav]


class _Page(HTMLParser):
    """The links of a page, and the anchors at which others may point."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.anchors |= {each for each in (named.get("id"), named.get("name")) if each}
        self.links |= {each for each in (named.get("href"), named.get("src")) if each}


def broken_links(site: Path) -> list[str]:
    pages = {"/" + str(path.relative_to(site)): _Page(path) for path in site.rglob("*.html")}
    broken = []
    for name, page in pages.items():
        for link in page.links:
            parts = urlsplit(urljoin("http://site" + name, link))
            if parts.netloc != "site" or name == "/404.html":
                continue
            path = unquote(parts.path) + ("index.html" if parts.path.endswith("/") else "")
            there = (site / path.lstrip("/")).is_file()
            fits = not parts.fragment or path not in pages or unquote(parts.fragment) in pages[path].anchors
            if not there or not fits:
                broken.append(f"{name}: {link}")
    return sorted(broken)


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def site() -> Iterator[tuple[Path, str]]:
    """The built site of this version, and the URL at which it is served."""
    done = subprocess.run([sys.executable, "scripts/build_site.py"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "arning" not in done.stdout + done.stderr and "griffe" not in done.stderr, done.stdout + done.stderr
    folder = ROOT / "build" / "site"
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield folder / hf.__version__, f"http://127.0.0.1:{server.server_port}/{hf.__version__}/"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.timeout(300)
def test_the_site_is_built_without_a_warning_and_a_browser_finds_names_in_it(
    site: tuple[Path, str], browser: Chrome
) -> None:
    folder, url = site
    assert broken_links(folder) == []
    for width in (400, 1400):
        browser.set_window_size(width, 1000)
        for page in ("", "reference/api/job/", "guide/sources/"):
            browser.get(url + page)
            assert browser.execute_script("return document.documentElement.scrollWidth <= window.innerWidth"), page
        for name in ("KafkaSource", "available_now", "PositionLost"):
            assert found_by_search(browser, url, name)[0].startswith(name)


def found_by_search(browser: Chrome, url: str, words: str) -> list[str]:
    """Search as a reader does, and return the titles that were found, the best first."""
    browser.get(url)
    until(lambda: browser.execute_script("return document.querySelector('.md-search__button') !== null"))
    browser.execute_script("document.querySelector('.md-search__button').click()")
    search = "return document.activeElement?.shadowRoot?.activeElement ?? document.activeElement"
    until(lambda: browser.execute_script(f"{search}").tag_name == "input")
    browser.execute_script(search).send_keys(words)
    until(lambda: _titles(browser))
    return _titles(browser)


def _titles(browser: Chrome) -> list[str]:
    """The titles of what was found, which Zensical draws in a shadow root."""
    found = (
        "[...document.querySelectorAll('*')].flatMap(e => [...(e.shadowRoot?.querySelectorAll('h2') ?? [])])"
        ".map(e => e.innerText)"
    )
    return list(browser.execute_script(f"return {found}"))
