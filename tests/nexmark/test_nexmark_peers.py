"""A query that fails on another engine is reported by name, and the queries after it are measured."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.nexmark.__main__ import add, summary
from benchmarks.nexmark.flink_sql import QUERIES, script
from benchmarks.nexmark.measure import PeerFailed


def test_a_query_that_fails_on_a_peer_is_named_and_the_others_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    found: dict[str, dict[str, Any]] = {name: {"rows_per_s": 9_200} for name in ("q5", "q12", "q18")}

    def run(name: str) -> Iterator[tuple[str, float]]:
        if name == "q12":
            raise PeerFailed("Flink's q12 ended with 1")
        yield "", 2.0
        if name == "q18":
            raise PeerFailed("Flink's q18 on HashMap ended with 1")

    for name, figures in found.items():
        add(figures, "flink", 4_600, partial(run, name))
    result = summary(found)
    assert result["failed_on_flink"] == ["q12", "q18"]
    assert [found[name].get("ratio") for name in found] == [4.0, None, 4.0]
    assert result["median_vs_flink"] == 4.0
    assert "Flink's q12 ended with 1" in capsys.readouterr().err


def test_only_the_query_of_processing_time_adds_its_column_to_flinks_tables(tmp_path: Path) -> None:
    with_processing_time = [name for name in QUERIES if "PROCTIME()" in script(name, tmp_path)]
    assert with_processing_time == ["q12"]
    assert "TABLE (" not in script("q12", tmp_path), "Flink's TUMBLE refuses a subquery"
