"""Splits that fail repeatedly: when each is tried again, and when it is given up. Pure.

fails ──► waits, longer each time ──► tried again ──advances──► catches up ──reaches the newest rows──► forgotten
                                      │
             fails after `max_consecutive_failures` checkpoints without it: the job fails, or the split is parked
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from holdfast.behind import REASON_CHARACTERS_MAX, Behind, Positions, SplitBehind
from holdfast.errors import QueryFailed
from holdfast.execution.isolation import SplitName
from holdfast.execution.processes import back_off_s
from holdfast.settings import FailoverConfig, RegionConfig

SHOWN_MAX = 5
"""Number of splits that a message names with their reasons."""


@dataclass(slots=True)
class FailingSplit:
    """A split that did not advance since it failed."""

    reason: str
    attempts: int = 0
    next_s: float = -math.inf
    """Time at which the split is tried again; infinite: the split is parked."""
    failures: int = 0
    """Number of checkpoints in a row that completed without an advance of the split."""
    is_counted: bool = False
    """True if the attempts since the last checkpoint are in `failures`."""

    @property
    def is_parked(self) -> bool:
        return self.next_s == math.inf


class FailingSplits:
    """The failing splits of a start. With `by_attempt`, each failed attempt counts like a checkpoint without an
    advance."""

    def __init__(self, config: RegionConfig, failover: FailoverConfig, by_attempt: bool) -> None:
        self._config = config
        self._failover = failover
        self._by_attempt = by_attempt
        self.splits: dict[SplitName, FailingSplit] = {}
        self.catching_up: set[SplitName] = set()
        """Splits that failed and advance again, but have not reached the newest rows."""

    def restored(self, behind: Behind) -> None:
        """Begin with the splits of a record. Splits that had stopped are tried at once, even if they were parked."""
        for source, splits in behind.items():
            for split, each in splits.items():
                if each.reason:
                    self.splits[source, split] = FailingSplit(each.reason)
                else:
                    self.catching_up.add((source, split))

    def committed(self, tried: Collection[SplitName], failed: Mapping[SplitName, str], now_s: float) -> list[SplitName]:
        """Note the splits that a committed batch tried, and those that failed; return newly parked splits."""
        for name in [name for name in self.splits if name in tried and name not in failed]:
            del self.splits[name]
            self.catching_up.add(name)
        parked = []
        for name, reason in failed.items():
            is_over = self._is_over(name)
            split = self.splits.setdefault(name, FailingSplit(reason))
            self.catching_up.discard(name)
            split.reason = reason
            split.attempts += 1
            split.is_counted = False
            split.next_s = math.inf if is_over else now_s + back_off_s(split.attempts + 1, self._failover)
            if is_over:
                parked.append(name)
        if self._by_attempt:
            self.checkpoint_completed()
        return parked

    def _is_over(self, name: SplitName) -> bool:
        """True if the allowed number of checkpoints has completed without the split, so that it may not fail once
        more."""
        failures = self.splits[name].failures if name in self.splits else 0
        return failures >= self._config.max_consecutive_failures

    def caught_up(self, has: Callable[[SplitName], bool]) -> None:
        """Forget splits that have reached the newest rows."""
        self.catching_up = {name for name in self.catching_up if not has(name)}

    def checkpoint_completed(self) -> None:
        """Count a checkpoint without advance for each split that failed since the last checkpoint."""
        for split in self.splits.values():
            if not split.is_counted and not split.is_parked:
                split.is_counted = True
                split.failures += 1

    def retry(self, name: SplitName) -> None:
        """Try a split at once, with its failures forgotten; nothing happens if it does not fail."""
        if name in self.splits:
            self.splits[name] = FailingSplit(self.splits[name].reason)

    def check(self, failed: Mapping[SplitName, str], offsets: Positions) -> None:
        """Raise `QueryFailed`, which names positions and reasons, if splits that a batch could not advance failed too
        often and must not be parked. The batch is not committed then, so no checkpoint leaves them out."""
        limit = self._config.max_consecutive_failures
        past = {name: reason for name, reason in failed.items() if self._is_over(name)}
        if past and self._config.on_poison != "park":
            first = sorted(past.items())[:SHOWN_MAX]
            shown = "; ".join(
                f"source {source!r}, split {split!r}, at {offsets.get(source, {}).get(split)}: {reason}"
                for (source, split), reason in first
            )
            raise QueryFailed(
                f"{len(past)} splits failed more than {limit} times in a row (max_consecutive_failures): {shown}. "
                "Correct the cause and start again, or set them aside with RegionConfig(on_poison='park')"
            )

    def held(self, now_s: float) -> list[SplitName]:
        """Splits that must not be read now."""
        return [name for name, each in self.splits.items() if each.next_s > now_s]

    def standing(self, tried: Collection[SplitName]) -> int:
        """Number of failing splits that are not tried now."""
        return sum(name not in tried for name in self.splits)

    def parked(self) -> list[SplitName]:
        return [name for name, each in self.splits.items() if each.is_parked]

    @property
    def names(self) -> set[SplitName]:
        """Splits that are behind: failing, parked, or catching up."""
        return self.catching_up | self.splits.keys()

    def behind(self) -> Behind:
        """Splits that are behind, as a record has them."""
        found: Behind = {}
        for (source, split), each in self.splits.items():
            reason = each.reason[:REASON_CHARACTERS_MAX]
            found.setdefault(source, {})[split] = SplitBehind(0, each.failures, reason, each.is_parked)
        for source, split in self.catching_up:
            found.setdefault(source, {})[split] = SplitBehind()
        return found

    @property
    def is_waiting(self) -> bool:
        """True if a failing split is not parked, so that it will be tried again."""
        return any(not each.is_parked for each in self.splits.values())
