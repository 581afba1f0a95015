"""The picture of the README: throughput beside others, latency and recovery, from measured figures in JSON.

    python -m benchmarks.picture docs/measurements/peers.json docs/pictures/figures.svg

The file has the output of `benchmarks.count`, `benchmarks.failover` and `benchmarks.peers.over_kafka`, and the rates of
other engines on the same machine: {"rows_per_s": {name: [1,000 keys, 1,000,000 keys]},
"latency_ms": {name: [p50, p99]}, "recovery_s": {name: seconds}}. Names that begin with "Holdfast" have a colour of
their own.
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
    made, (rates, latency, recovery) = plt.subplots(1, 3, figsize=(13, 3.6), width_ratios=(1.6, 1.2, 1.2))
    millions = {
        name: [None if each is None else each / 1e6 for each in pair] for name, pair in found["rows_per_s"].items()
    }
    _draw_pairs(rates, "Keyed count, million rows/s: 1,000 and (pale) 1,000,000 keys", millions)
    _draw_pairs(latency, "Kafka to Kafka, ms: p50 and (pale) p99", found["latency_ms"])
    _draw_pairs(recovery, "From a kill to the next result, s", {k: [v, None] for k, v in found["recovery_s"].items()})
    made.text(0.01, 0.01, f"{found['machine']}; {found['day']}", fontsize=7, color="#607d8b")
    made.tight_layout(rect=(0, 0.03, 1, 1))
    made.savefig(picture, metadata={"Date": None})


def _draw_pairs(axes: Any, title: str, values: dict[str, list[float | None]]) -> None:
    """Draw one or two bars for each name, the second pale, on a logarithmic scale."""
    for place, (name, (first, second)) in enumerate(values.items()):
        color = OURS if name.startswith("Holdfast") else OTHERS
        for offset, value, alpha in ((-0.2, first, 1.0), (0.2, second, PALE)):
            if value is not None:
                axes.barh(place + offset, value, 0.36, color=color, alpha=alpha)
                axes.text(value * 1.1, place + offset, f"{value:.3g}", va="center", fontsize=7)
    axes.set_yticks(range(len(values)), list(values), fontsize=7)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlim(right=8 * max(each for pair in values.values() for each in pair if each is not None))
    axes.set_title(title, fontsize=8)


if __name__ == "__main__":
    typer.run(main)
