"""docs/reference/metrics.md against the code: every metric with its names, and nothing that does not exist."""

import re

from docs_pages import ROOT

from holdfast.observe.known_metrics import KNOWN

ROW = re.compile(r"^\| `(\w+)` \| `(\w+)`(, by subtask)? \| (\w+) \| (.+) \|$", re.MULTILINE)


def test_the_page_lists_every_metric_with_its_names_kind_and_meaning() -> None:
    found = ROW.findall((ROOT / "docs" / "reference" / "metrics.md").read_text())
    assert found == [
        (each.name, each.prometheus, ", by subtask" if each.by_subtask else "", each.kind, each.help)
        for each in KNOWN.values()
    ]


def test_names_for_prometheus_follow_its_rules() -> None:
    for each in KNOWN.values():
        assert each.prometheus.startswith("holdfast_")
        assert (each.kind == "counter") == each.prometheus.endswith("_total"), each.prometheus
        assert not re.search(r"(_ms|millis|nanos)", each.prometheus), each.prometheus
        assert (each.scale != 1) == ("_seconds" in each.prometheus), each.prometheus
    assert len({each.prometheus for each in KNOWN.values()}) == len(KNOWN)


def test_the_page_on_operations_names_metrics_that_exist() -> None:
    named = set(re.findall(r"`(holdfast_\w+)`", (ROOT / "docs" / "guide" / "operations.md").read_text()))
    assert named
    assert named <= {each.prometheus for each in KNOWN.values()} | {"holdfast_source_lag"}
