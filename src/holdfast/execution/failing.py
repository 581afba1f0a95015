"""Splits that fail again and again: when each is tried next, and when it is given up. Pure.

fails ──► waits, longer each time ──► tried again ──advances──► forgotten
                                          │
                 past `max_consecutive_failures`: the job fails, or the split is parked
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from holdfast.errors import QueryFailed
from holdfast.execution.isolation import SplitName
from holdfast.execution.processes import back_off_s
from holdfast.settings import FailoverConfig, RegionConfig

SHOWN_MAX = 5
"""Splits that a message shows with their reasons."""


@dataclass(slots=True)
class FailingSplit:
    """A split that did not advance since it failed."""

    reason: str
    attempts: int = 0
    next_s: float = -math.inf
    """When it is tried again; infinite: it is parked."""
    failures: int = 0
    """Checkpoints in a row that completed without it."""
    is_counted: bool = False
    """True if the attempts since the last checkpoint are in `failures`."""

    @property
    def is_parked(self) -> bool:
        return self.next_s == math.inf


class FailingSplits:
    """The failing splits of a start. With `by_attempt` each failed attempt counts like a checkpoint without advance."""

    def __init__(self, config: RegionConfig, failover: FailoverConfig, by_attempt: bool) -> None:
        self._config = config
        self._failover = failover
        self._by_attempt = by_attempt
        self.splits: dict[SplitName, FailingSplit] = {}

    def committed(self, tried: Collection[SplitName], failed: Mapping[SplitName, str], now_s: float) -> list[SplitName]:
        """Take in a committed batch: the splits that it tried, and those of them that failed. Returns splits that are
        parked from now on."""
        for name in tried:
            if name not in failed:
                self.splits.pop(name, None)
        for name, reason in failed.items():
            split = self.splits.setdefault(name, FailingSplit(reason))
            split.reason = reason
            split.attempts += 1
            split.is_counted = False
            split.next_s = now_s + back_off_s(split.attempts + 1, self._failover)
        return self.checkpoint_completed() if self._by_attempt else []

    def checkpoint_completed(self) -> list[SplitName]:
        """Count a checkpoint without advance for each split that failed since the last checkpoint. Returns splits that
        are parked from now on."""
        parked = []
        for name, split in self.splits.items():
            if split.is_counted or split.is_parked:
                continue
            split.is_counted = True
            split.failures += 1
            if split.failures > self._config.max_consecutive_failures and self._config.on_poison == "park":
                split.next_s = math.inf
                parked.append(name)
        return parked

    def check(self) -> None:
        """Raise `QueryFailed` if splits failed too often and are not to be parked; it names them with their reasons."""
        limit = self._config.max_consecutive_failures
        past = {name: each for name, each in self.splits.items() if each.failures > limit and not each.is_parked}
        if past:
            shown = "; ".join(f"{_shown(name)}: {each.reason}" for name, each in sorted(past.items())[:SHOWN_MAX])
            raise QueryFailed(
                f"{len(past)} splits failed more than {limit} times in a row (max_consecutive_failures): {shown}. "
                "Correct the cause and start again, or set them aside with RegionConfig(on_poison='park')"
            )

    def held(self, now_s: float) -> list[SplitName]:
        """Splits that are not to be read now."""
        return [name for name, each in self.splits.items() if each.next_s > now_s]

    def parked(self) -> list[SplitName]:
        return [name for name, each in self.splits.items() if each.is_parked]

    @property
    def is_waiting(self) -> bool:
        """True if a split that is not parked has yet to be tried again."""
        return any(not each.is_parked for each in self.splits.values())


def _shown(name: SplitName) -> str:
    source, split = name
    return f"source {source!r}, split {split!r}"
