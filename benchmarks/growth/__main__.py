"""How the cost of a job grows along some sixty axes, as one JSON line.

    python -m benchmarks.growth --json                       # all axes, in some 6 minutes of processor time
    python -m benchmarks.growth --json --axes keys,sinks     # these
    python -m benchmarks.growth --plot docs/pictures/growth.svg

    axes        by name: sizes, cost_s, cost_per_unit_us, exponent beside its bound, peak_mb (of each size)
                beside memory_bound_mb
    beyond      the names of the axes whose exponent or memory is beyond its bound, or that failed
    processor_s of the whole run

The costs are processor time of this process (`axis`), which runs the whole job (`holdfast.testing`).
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.growth.axes import AXES, measured_facts


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(prog="benchmarks.growth", description=__doc__)
    parser.add_argument("--axes", default=",".join(AXES), help="names of axes, separated by commas")
    parser.add_argument("--processes", type=int, default=1, help="axes that are measured at a time")
    parser.add_argument("--json", action="store_true", help="print a single line")
    parser.add_argument("--plot", help="draw the exponents into this file")
    options = parser.parse_args(arguments)
    found = measured_facts(options.axes.split(","), options.processes)
    facts = {
        "axes": found,
        "beyond": [name for name, each in found.items() if not each["within"]],
        "processor_s": round(sum(each.get("processor_s", 0.0) for each in found.values())),
    }
    print(json.dumps(facts, indent=None if options.json else 2))
    if options.plot:
        plot(found, Path(options.plot))
    return facts


def plot(found: dict[str, Any], path: Path) -> None:
    """Draw each axis's exponent beside its bound."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams["svg.fonttype"] = "none"
    known = {name: each for name, each in found.items() if "exponent" in each}
    figure, axes = pyplot.subplots(figsize=(8, 0.2 * len(known) + 1))
    places = range(len(known))
    axes.barh(places, [each["exponent"] for each in known.values()], color="#4477aa", label="exponent")
    axes.plot([each["bound"] for each in known.values()], places, "r|", markersize=8, label="bound")
    axes.set_yticks(places, list(known), fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("exponent of the cost over the size")
    axes.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
