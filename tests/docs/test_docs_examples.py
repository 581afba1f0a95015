"""Each public name stands in an example that runs, on the page of the reference that describes it."""

import re

import pytest
from docs_pages import ROOT, snippets

import holdfast as hf

PAGES = {
    name: page
    for page in sorted((ROOT / "docs" / "reference" / "api").glob("*.md"))
    for name in re.findall(r"^::: holdfast\.api\.(\w+)$", page.read_text(), re.MULTILINE)
}


@pytest.mark.parametrize("name", PAGES)
def test_a_public_name_is_used_in_an_example_on_its_page(name: str) -> None:
    code = "\n".join(each.code for each in snippets(PAGES[name]))
    assert re.search(rf"\bhf\.{name}\b", code), f"{PAGES[name].name} has no example of {name}"


def test_all_public_names_but_errors_are_on_these_pages() -> None:
    errors = {name for name in hf.__all__ if name in (ROOT / "docs" / "reference" / "errors.md").read_text()}
    assert set(hf.__all__) - set(PAGES) <= errors
