"""Builds the documentation site from README, the pages in docs/ and the docstrings: `make docs`, offline.

    docs/, README.md, …  ──copy, links changed──►  build/pages  ──zensical──►  build/site/<version>

Pages are written so that they can be read in the repository, too. The copy therefore makes the site's front page of
README, moves pages of the root into the site, leaves out lines that readers are not shown (`docs_pages.py` of the tests
runs them), and turns links to code, which the site does not hold, into plain text.
"""

import json
import posixpath
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"
PAGES = BUILD / "pages"
FROM_ROOT = {
    "README.md": "index.md",
    **{
        f"{name}.md": f"{name.lower()}.md"
        for name in ("ARCHITECTURE", "CHANGELOG", "CONTRIBUTING", "SECURITY", "SUPPORT")
    },
}
"""Pages of the repository's root, and where the site has them."""

_HIDDEN = re.compile(r"^<!--.*?-->\n?", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?://|mailto:|#)([^)#\s]+)(#[^)\s]*)?\)")
_FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def main() -> None:
    version = re.search(r'__version__ = "(.*)"', (ROOT / "src/holdfast/__init__.py").read_text())
    assert version is not None
    copy_pages()
    # Zensical reads its settings from the folder in which it runs, and writes below the folder that they name.
    done = subprocess.run([sys.executable, "-m", "zensical", "build", "--clean", "--strict"], cwd=ROOT, check=False)
    if done.returncode:
        sys.exit(done.returncode)
    publish(version[1])


def copy_pages() -> None:
    """Fill `build/pages` anew."""
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(ROOT / "docs", PAGES)
    (PAGES / "README.md").unlink()
    for page in sorted(PAGES.rglob("*.md")):
        page.write_text(for_site(page.read_text(), f"docs/{page.relative_to(PAGES)}"))
    for name, there in FROM_ROOT.items():
        (PAGES / there).write_text(for_site((ROOT / name).read_text(), name))


def for_site(text: str, source: str) -> str:
    """Return the text of a page for the site. `source`: where the page lies in the repository."""
    parts = _FENCED.split(_HIDDEN.sub("", text))
    return "".join(part if part.startswith("```") else _LINK.sub(lambda m: _link(m, source), part) for part in parts)


def _link(match: re.Match[str], source: str) -> str:
    image, label, link, anchor = match.groups()
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    there = in_site(target)
    if there is None:
        return label
    own = in_site(source) or source
    return f"{image}[{label}]({posixpath.relpath(there, posixpath.dirname(own) or '.')}{anchor or ''})"


def in_site(path: str) -> str | None:
    """Return where the site has a file of the repository; None if it does not have it."""
    if path in FROM_ROOT:
        return FROM_ROOT[path]
    if path == "docs/README.md":
        return FROM_ROOT["README.md"]
    return path.removeprefix("docs/") if path.startswith("docs/") else None


def publish(version: str) -> None:
    """Move what was built to its version's folder, and list the versions that `build/site` holds."""
    site = BUILD / "site"
    site.mkdir(exist_ok=True)
    shutil.rmtree(site / version, ignore_errors=True)
    (BUILD / "made").rename(site / version)
    versions = sorted((each.name for each in site.iterdir() if each.is_dir()), reverse=True)
    listed = [
        {"version": each, "title": each, "aliases": ["latest"] if each == versions[0] else []} for each in versions
    ]
    (site / "versions.json").write_text(json.dumps(listed))
    (site / "index.html").write_text(f'<!doctype html><meta http-equiv="refresh" content="0; url={versions[0]}/">\n')
    print(f"The site is in {site / version}; `python -m http.server -d {site}` serves it")


if __name__ == "__main__":
    main()
