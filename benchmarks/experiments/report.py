"""The page with the results of the experiments: plots as SVG in an HTML file, figures beside the documents' own."""

import io
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from statistics import median
from typing import Any

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot as plt

from benchmarks import remote_apply
from benchmarks.experiments.runs import BACKENDS, CACHES, Run, Size

Results = Mapping[str, dict[str, Any]]
ON, OFF = "#3b6fb5", "#d9822b"
STEPS = {"changelog": "changelog, by none", "local copies": "local copies, by none"}
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 960px; margin: 24px auto; padding: 0 16px; }
body { color: #1b1f24; background: #fff; }
table { border-collapse: collapse; } td, th { border: 1px solid #d1d9e0; padding: 4px 10px; text-align: right; }
td:first-child, th:first-child { text-align: left; } svg { width: 100%; height: auto; } code { font-size: 13px; }
"""
DOCUMENTED = {
    "checkpoint p99 as state grows": "about 1 s and flat with the changelog, 8 s growing to 20 s without",
    "checkpoint p50 / p99 with the documents' latencies": "1,000 / 1,700 ms, computed for 500 writers",
    "space amplification": "1.2 to 2",
    "recovery with the changelog, no local copies": "+40 %",
    "updates per second under back-pressure with the changelog": "-10 to -20 %",
    "with local copies on top": "about -5 %",
    "owner's costliest checkpoint by the median one, table by follower / by owner": "flat by follower",
}
CACHE = ("cache by no cache, at 0 / 50 / 100 % hits", "0.956 / 1.87 / 21.6")
"""Figures of the documents `003` (changelog), `000` (latencies) and `002` (cache)."""


def page(size: Size, done: Sequence[Run], results: Results) -> str:
    """Put the page together."""
    plots = [
        *(plot for backend in BACKENDS for plot in _plots_of(backend, size, results)),
        _plot("The cache over RocksDB: rows per second by those without a cache", _cache(results)),
    ]
    commands = "".join(f"<li><code>{escape(run.command)}</code></li>" for run in done)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Experiments</title><style>{STYLE}</style>'
        f"<h1>Experiments</h1><p>Measured on {datetime.now(UTC):%Y-%m-%d %H:%M} UTC. In experiment B a network of "
        "100 MB/s and 20 ms lies before the store.</p>"
        f"{_figures(size, results)}{''.join(plots)}<h2>Commands</h2><ol>{commands}</ol></html>"
    )


def _plots_of(backend: str, size: Size, results: Results) -> list[str]:
    return [
        _plot(f"Experiment A, {backend}: checkpoint durations over time", _durations(size, results, backend)),
        _plot(f"Experiment A, {backend}: bytes stored for one checkpoint", _stored(size, results, backend)),
        _plot(f"Experiment B, {backend}: seconds until state is restored", _recoveries(size, results, backend)),
        _plot(f"Experiment C, {backend}: updates and processor time by those without", _pressed(results, backend)),
        *(
            _plot(f"Remote Apply, {backend}: the owner's {figure}, by checkpoint", _remote(results, backend, place))
            for place, figure in enumerate(remote_apply.FIGURES)
        ),
    ]


def _figures(size: Size, results: Results) -> str:
    rows = [
        (f"{name}, {backend}", documented, _ours(name, size, results, backend))
        for backend in BACKENDS
        for name, documented in DOCUMENTED.items()
    ]
    rows.append((*CACHE, " / ".join(f"{_speed_up(results, hits):.3g}" for hits in CACHES)))
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr><th>figure</th><th>in the documents</th><th>here</th></tr>{body}</table>"


def _ours(name: str, size: Size, results: Results, backend: str) -> str:
    found = [results[f"A and B, {state_mb} MB, {backend}"] for state_mb in size.state_mb]
    match name:
        case "checkpoint p99 as state grows":
            with_it, without = (
                ", ".join(f"{each[mode]['p99_ms']:,.0f} ms" for each in found) for mode in ("on", "off")
            )
            return f"{with_it} with, {without} without, at {' and '.join(map(str, size.state_mb))} MB"
        case "checkpoint p50 / p99 with the documents' latencies":
            slow = results[f"A with latencies, {backend}"]
            both = [f"{slow[mode]['p50_ms']:,.0f} / {slow[mode]['p99_ms']:,.0f} ms" for mode in ("on", "off")]
            return f"{both[0]} with, {both[1]} without"
        case "space amplification":
            return ", ".join(str(each["on"]["space_amplification"]) for each in found)
        case "recovery with the changelog, no local copies":
            return ", ".join(_change(each["on"]["recovery_s"], each["off"]["recovery_s"]) for each in found)
        case "updates per second under back-pressure with the changelog":
            return _pair(results[f"C, changelog, {backend}"])
        case "owner's costliest checkpoint by the median one, table by follower / by owner":
            costs = [results[f"Remote Apply, {backend}"][by] for by in ("follower", "owner")]
            return " / ".join(f"{each['cpu_ms_max'] / each['cpu_ms_p50']:.1f}" for each in costs) + " (processor time)"
    return _pair(results[f"C, local copies, {backend}"])


def _pair(found: dict[str, Any]) -> str:
    time = _change(found["on"]["cpu_us_per_row"], found["off"]["cpu_us_per_row"])
    return f"{_change(found['on']['rows_per_s'], found['off']['rows_per_s'])} ({time} processor time for each)"


def _speed_up(results: Results, hits: str) -> float:
    without, with_it = (results[f"cache, {hits} hits, {way}"]["ns_per_row"] for way in ("without", "with"))
    return float(without / with_it)


def _change(now: float, before: float) -> str:
    return f"{(now / before - 1) * 100:+.0f} %"


# --- plots ------------------------------------------------------------------------------------------------------------

Draw = Callable[[Any], None]


def _plot(title: str, draw: Draw) -> str:
    figure, axes = plt.subplots(figsize=(9, 3.6), layout="constrained")
    draw(axes)
    axes.set_title(title)
    axes.grid(axis="y", alpha=0.3)
    written = io.StringIO()
    figure.savefig(written, format="svg")
    plt.close(figure)
    return written.getvalue()[written.getvalue().index("<svg") :]


def _series(size: Size, results: Results, backend: str, place: int, scale: float) -> list[tuple[str, str, list[float]]]:
    found = []
    for state_mb in size.state_mb:
        for mode, colour in (("on", ON), ("off", OFF)):
            series = results[f"A and B, {state_mb} MB, {backend}"][mode]["series"]
            name = f"{state_mb} MB, {'with' if mode == 'on' else 'without'} changelog"
            found.append((name, colour, [each[place] * scale for each in series]))
    return found


def _durations(size: Size, results: Results, backend: str) -> Draw:
    def draw(axes: Any) -> None:
        for at, (name, colour, values) in enumerate(_series(size, results, backend, 0, 1.0)):
            axes.plot(values, color=colour, linestyle="-" if at < 2 else "--", label=name, linewidth=1)
        axes.set(xlabel="checkpoints, one a second", ylabel="milliseconds", yscale="log")
        axes.legend(fontsize="small")

    return draw


def _stored(size: Size, results: Results, backend: str) -> Draw:
    def draw(axes: Any) -> None:
        for at, (name, colour, values) in enumerate(_series(size, results, backend, 1, 1e-6)):
            axes.plot(values, color=colour, linestyle="-" if at < 2 else "--", label=name, linewidth=1)
        axes.set(xlabel="checkpoints, one a second", ylabel="MB stored")
        axes.legend(fontsize="small")

    return draw


def _recoveries(size: Size, results: Results, backend: str) -> Draw:
    def draw(axes: Any) -> None:
        labels, heights, colours = [], [], []
        for state_mb in size.state_mb:
            for mode, colour in (("on", ON), ("off", OFF)):
                found = results[f"A and B, {state_mb} MB, {backend}"][mode]
                for way, name in (("recovery_s", "store"), ("recovery_local_s", "local")):
                    labels.append(f"{state_mb} MB\n{'with' if mode == 'on' else 'without'}\n{name}")
                    heights.append(found[way] or 0.0)
                    colours.append(colour)
        _bars(axes, labels, heights, colours)
        axes.set_ylabel("seconds")

    return draw


def _pressed(results: Results, backend: str) -> Draw:
    def draw(axes: Any) -> None:
        labels, heights, colours = [], [], []
        for step, shown in STEPS.items():
            found = results[f"C, {step}, {backend}"]
            for figure, name in (("rows_per_s", "updates/s"), ("cpu_us_per_row", "processor time")):
                labels.append(f"{shown}\n{name}")
                heights.append(found["on"][figure] / found["off"][figure])
                colours.append(ON if figure == "rows_per_s" else OFF)
        _bars(axes, labels, heights, colours)
        axes.axhline(1.0, color="black", linewidth=1)

    return draw


def _remote(results: Results, backend: str, place: int) -> Draw:
    return lambda axes: remote_apply.draw(axes, results[f"Remote Apply, {backend}"], place)


def _cache(results: Results) -> Draw:
    def draw(axes: Any) -> None:
        _bars(
            axes, [f"{hits} hits" for hits in CACHES], [_speed_up(results, hits) for hits in CACHES], [ON] * len(CACHES)
        )
        axes.axhline(1.0, color=OFF)
        axes.set_ylabel("times as fast")

    return draw


def _bars(axes: Any, labels: list[str], heights: list[float], colours: list[str]) -> None:
    drawn = axes.bar(range(len(labels)), heights, color=colours)
    axes.set_xticks(range(len(labels)), labels, fontsize="small")
    small = median(heights) < 100
    axes.bar_label(drawn, [f"{height:.2f}" if small else f"{height:,.0f}" for height in heights], fontsize="small")
