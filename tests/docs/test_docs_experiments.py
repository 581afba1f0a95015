"""The report of the experiments, from figures as the benchmarks give them."""

from benchmarks.experiments.report import page
from benchmarks.experiments.runs import QUICK, runs


def figures(scale: float) -> dict[str, object]:
    return {
        "p99_ms": 40.0 * scale,
        "space_amplification": 1.5,
        "recovery_s": 2.0 * scale,
        "recovery_local_s": 0.5,
        "rows_per_s": 1000.0 / scale,
        "p50_ms": 30.0 * scale,
        "cpu_us_per_row": 10.0 * scale,
        "ns_per_row": 100.0 * scale,
        "series": [(30.0 * scale, 1_000_000, 20_000_000)] * 5,
    }


def test_the_page_has_every_plot_and_our_figures_beside_the_documents() -> None:
    results = {}
    for run in runs(QUICK):
        pair = {"on": figures(1.0), "off": figures(2.0)}
        owner = {"series": [(30.0, 2.0), (90.0, 6.0)], "cpu_ms_p50": 30, "cpu_ms_max": 90}
        follower = owner | {"cpu_ms_max": 33}
        alone = figures(2.0 if run.name.endswith("without") else 1.0)
        results[run.name] = alone if run.name.startswith("cache") else pair
        if run.name.startswith("Remote Apply"):
            results[run.name] = {"owner": owner, "follower": follower}
    made = page(QUICK, runs(QUICK), results)
    assert made.count("<svg") == 2 * 6 + 1
    assert "40 ms, 40 ms with, 80 ms, 80 ms without" in made
    assert "30 / 40 ms with, 60 / 80 ms without" in made
    assert "2 / 2 / 2" in made and "+100 % (-50 % processor time for each)" in made
    assert "1.1 / 3.0 (processor time)" in made
    assert all(run.command in made for run in runs(QUICK))
