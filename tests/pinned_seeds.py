"""Seeds in which something showed when it was last looked for: each search begins there.

The seeds lie in `simulation/pinned_seeds.json`. Each change of what a seed draws moves them: then the searches take
longer, and find the same. `make seeds` runs all searches, and writes the cheapest of the first seeds that each found.
"""

import json
import os
from pathlib import Path

FILE = Path(__file__).parent / "simulation" / "pinned_seeds.json"
WRITES = "HOLDFAST_PIN_SEEDS"
"""The environment variable with which a search writes the seed that it found. Only `make seeds` sets it."""

CHOICES = 3
"""The number of seeds among which a run of `make seeds` chooses the cheapest."""


class PinnedSeeds:
    """The seeds of one section of the file, by the name of what shows in them."""

    def __init__(self, section: str) -> None:
        self._section = section
        self._prices: dict[str, dict[int, int]] = {}

    def first(self, name: str) -> int:
        """Return the seed in which `name` showed last; 0 if it has never been looked for."""
        return int(self._read().get(self._section, {}).get(name, 0))

    @staticmethod
    def writes() -> bool:
        """True in a run of `make seeds`."""
        return WRITES in os.environ

    def found(self, name: str, seed: int, price: int) -> bool:
        """Note that `name` showed in a seed; return True if the search is over. `price`: the steps of its simulation.

        A run of `make seeds` looks for `CHOICES` seeds, and keeps the cheapest.
        """
        if not self.writes():
            return True
        prices = self._prices.setdefault(name, {})
        prices[seed] = price
        seeds = self._read()
        seeds.setdefault(self._section, {})[name] = min(prices, key=lambda each: prices[each])
        FILE.write_text(json.dumps(seeds, indent=1, sort_keys=True) + "\n")
        return len(prices) >= CHOICES

    @staticmethod
    def _read() -> dict[str, dict[str, int]]:
        seeds: dict[str, dict[str, int]] = json.loads(FILE.read_text())
        return seeds
