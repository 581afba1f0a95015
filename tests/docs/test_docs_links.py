"""Links between pages, and the files that pages name, exist."""

import re
from pathlib import Path

import pytest
from docs_pages import PAGES, ROOT, name_of

LINK = re.compile(r"\]\((?!https?://|mailto:)([^)#\s]*)(#[^)]*)?\)")


def anchors(page: Path) -> set[str]:
    """Make the anchors of a page's headings as GitHub does."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {"#" + re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_relative_link_of_a_page_leads_somewhere(page: Path) -> None:
    broken = []
    for link, anchor in LINK.findall(page.read_text()):
        target = page.parent / link if link else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link + anchor)
    assert not broken


def test_every_file_and_folder_that_the_architecture_page_names_exists() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    named = set(re.findall(r"`([a-z_]+/(?:[a-z_]+\.py)?)`", text))
    assert named
    missing = [
        name for name in sorted(named) if not any((root / name).exists() for root in (ROOT, ROOT / "src" / "holdfast"))
    ]
    assert not missing


def test_every_module_that_the_architecture_page_names_exists() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    there = {path.name for folder in ("src", "tests") for path in (ROOT / folder).rglob("*.py")}
    assert set(re.findall(r"`([a-z0-9_]+\.py)`", text)) - there == set()


def test_the_architecture_page_names_every_room_of_the_code() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    rooms = {found.parent.name for found in (ROOT / "src" / "holdfast").glob("*/__init__.py")}
    assert not {room for room in rooms if f"`{room}/`" not in text}


def test_every_decision_record_is_in_the_list_of_decisions() -> None:
    listed = (ROOT / "docs" / "decisions" / "README.md").read_text()
    records = [page.name for page in (ROOT / "docs" / "decisions").glob("*.md") if page.name != "README.md"]
    assert not [name for name in records if f"({name})" not in listed]
