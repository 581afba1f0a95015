"""Every Python snippet of README and docs runs, and prints the output on the page."""

from pathlib import Path
from typing import Any

import pytest
from docs_pages import PAGES, name_of, run, snippets

PURE = [page for page in PAGES if any(not snippet.spark for snippet in snippets(page))]
ON_SPARK = [page for page in PAGES if any(snippet.spark for snippet in snippets(page))]


@pytest.mark.parametrize("page", PURE, ids=name_of)
def test_the_snippets_of_a_page_that_need_no_spark_run_in_order(page: Path, tmp_path: Path) -> None:
    run([snippet for snippet in snippets(page) if not snippet.spark], tmp_path, {})


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", ON_SPARK, ids=name_of)
def test_all_snippets_of_a_page_with_spark_run_in_order(page: Path, tmp_path: Path, spark: Any) -> None:
    run(snippets(page), tmp_path, {"spark": spark})


def test_a_page_without_snippets_is_no_page_of_instructions() -> None:
    guide = {f"docs/guide/{page}.md" for page in ("getting-started", "functions", "testing", "sources")}
    expected = {"README.md", *guide}
    assert expected <= {name_of(page) for page in [*PURE, *ON_SPARK]}
