"""The page on security names, for each prevented thing, tests that exist."""

import re
from pathlib import Path

import pytest
from docs_pages import ROOT

PAGE = (ROOT / "docs/guide/security.md").read_text()
SOURCE = re.compile(r"^\s*(?:async )?def (test_\w+)", re.MULTILINE)
SECTIONS = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]


@pytest.fixture(scope="module")
def names_of_tests() -> set[str]:
    pages = (path.read_text() for path in Path(ROOT, "tests").rglob("test_*.py"))
    return {name for page in pages for name in SOURCE.findall(page)}


def test_each_test_that_the_page_on_security_names_exists(names_of_tests: set[str]) -> None:
    named = re.findall(r"`(test_\w+)`", PAGE)
    assert len(named) > 40
    assert not sorted(set(named) - names_of_tests)


def test_each_prevented_thing_names_a_test() -> None:
    rows = [
        line for line in PAGE.splitlines() if line.startswith("|") and "---" not in line and "prevented" not in line
    ]
    assert not [row for row in rows if "`test_" not in row]


@pytest.mark.parametrize("section", SECTIONS, ids=lambda text: text.split("\n")[0])
def test_each_section_says_what_is_prevented_and_the_rest(section: str) -> None:
    assert "| prevented | test |" in section
    assert re.search(r"Not prevented|Nothing is encrypted", section)
