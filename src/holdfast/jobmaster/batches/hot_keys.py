"""Shares of hot keys among the rows of each operator, over the last few dozen units. Pure; not thread-safe."""

from collections import Counter
from collections.abc import Iterable

from holdfast.exchange.hot_keys import KeySample

REMEMBERED = 16_384
"""Number of sampled rows of an operator after which older rows count half. With a higher value, a key that cools down
is named for longer."""
SAMPLED_MIN = 1_024
"""Number of sampled rows below which no share is reported."""
SHARE_MIN = 0.05
KEYS_MAX = 5
"""Greatest number of keys that are reported for an operator."""
TRACKED_MAX = 1_000
"""Bound on the keys of an operator that are counted; beyond it those with the fewest rows are forgotten."""
WARNED_SHARE = 0.25
"""Share of a key from which the log names it."""


class HotKeys:
    """The hot keys of a job's operators."""

    def __init__(self) -> None:
        self._rows: Counter[str] = Counter()
        self._keys: dict[str, Counter[str]] = {}
        self._named: set[tuple[str, str]] = set()

    def note(self, samples: Iterable[KeySample]) -> list[tuple[str, str, float]]:
        """Add samples; return each operator with a key that the log has not named yet, and the key's share."""
        for each in samples:
            keys = self._keys.setdefault(each.operator, Counter())
            self._rows[each.operator] += each.rows
            keys.update(dict(each.keys))
            if self._rows[each.operator] >= REMEMBERED:
                self._rows[each.operator] //= 2
                self._keys[each.operator] = Counter({key: rows // 2 for key, rows in keys.items() if rows > 1})
            elif len(keys) > TRACKED_MAX:
                self._keys[each.operator] = Counter(dict(keys.most_common(TRACKED_MAX // 2)))
        fresh = [
            (operator, key, share)
            for operator, shares in self.shares().items()
            for key, share in shares
            if share >= WARNED_SHARE and (operator, key) not in self._named
        ]
        self._named.update((operator, key) for operator, key, _ in fresh)
        return fresh

    def shares(self) -> dict[str, tuple[tuple[str, float], ...]]:
        """Return the keys of each operator with large shares of its rows, the largest first."""
        found = {}
        for operator, keys in self._keys.items():
            rows = self._rows[operator]
            if rows >= SAMPLED_MIN:
                shares = ((key, count / rows) for key, count in keys.most_common(KEYS_MAX))
                found[operator] = tuple((key, share) for key, share in shares if share >= SHARE_MIN)
        return found
