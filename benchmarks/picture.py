"""The picture of the README: throughput beside others, latency and recovery, from measured figures in JSON.

    python -m benchmarks.picture docs/measurements/peers.json docs/pictures/figures.svg

The file has the output of `benchmarks.count`, `benchmarks.latency` and `benchmarks.failover`, and the figures of other
engines on the same machine: {"rows_per_s": {name: [1,000 keys, 1,000,000 keys]}, "latency_ms": {…}, "recovery_s": {…}}.
`not_measured` says in the picture which figures are missing, and why.
"""

import json
from pathlib import Path
from typing import Any

import matplotlib
import typer

matplotlib.use("svg")
from matplotlib import pyplot as plt

OURS, OTHERS, PALE = "#00796b", "#78909c", 0.45


def main(figures: Path, picture: Path) -> None:
    """Draw the figures of a JSON file into an SVG."""
    found = json.loads(figures.read_text())
    # Without a fixed salt and date each drawing of the same figures would be another file.
    plt.rcParams.update({"svg.hashsalt": "holdfast", "font.size": 9, "svg.fonttype": "path"})
    made, (rates, latency, recovery) = plt.subplots(1, 3, figsize=(11, 3.4), width_ratios=(2, 1.3, 1.2))
    _draw_rates(rates, found["rows_per_s"])
    _draw_bars(latency, "Latency of Holdfast, ms", found["latency_ms"])
    _draw_bars(recovery, "Holdfast, until all subtasks work again, s", found["recovery_s"])
    notes = [f"{found['machine']}; {found['day']}", *filter(None, [found.get("not_measured")])]
    made.text(0.01, 0.01, "\n".join(notes), fontsize=7, color="#607d8b")
    made.tight_layout(rect=(0, 0.03 * len(notes), 1, 1))
    made.savefig(picture, metadata={"Date": None})


def _draw_rates(axes: Any, rates: dict[str, list[float | None]]) -> None:
    for place, (name, (few, many)) in enumerate(rates.items()):
        color = OURS if name == "Holdfast" else OTHERS
        for offset, value, alpha in ((-0.2, few, 1.0), (0.2, many, PALE)):
            if value is not None:
                axes.barh(place + offset, value / 1e6, 0.36, color=color, alpha=alpha)
                axes.text(value / 1e6 * 1.1, place + offset, f"{value / 1e6:.3g}", va="center", fontsize=7)
    axes.set_yticks(range(len(rates)), list(rates))
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlim(right=400)
    axes.set_title("Keyed count, million rows/s: 1,000 and (pale) 1,000,000 keys", fontsize=8)


def _draw_bars(axes: Any, title: str, values: dict[str, float]) -> None:
    axes.barh(range(len(values)), list(values.values()), 0.6, color=OURS)
    for place, (name, value) in enumerate(values.items()):
        axes.text(0, place - 0.42, f" {name}", fontsize=6.5)
        axes.text(value, place, f" {value:g}", va="center", fontsize=7)
    axes.set_yticks([])
    axes.set_ylim(len(values) - 0.5, -0.8)
    axes.set_xlim(right=1.25 * max(values.values()))
    axes.set_title(title, fontsize=8)


if __name__ == "__main__":
    typer.run(main)
