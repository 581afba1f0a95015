"""Parts of the simulated world: manifests, records, and TaskManagers with a log and materializations."""

from dataclasses import dataclass, field
from typing import Any

from holdfast.checkpoint import events as ev
from holdfast.checkpoint.gathering import Gather, Gathered


@dataclass
class Manifest:
    """A TaskManager's part of a cut: a materialization up to `boundary`, then the log after it."""

    name: str
    task_manager: int
    offset: int
    materialized: tuple[str, int] | None
    pieces: list[tuple[str, int, int]]

    def objects(self) -> frozenset[str]:
        own = {self.name} | {name for name, _, _ in self.pieces}
        return frozenset(own | ({self.materialized[0]} if self.materialized else set()))


@dataclass
class Record:
    checkpoint_id: int
    manifests: list[Manifest]
    groups: dict[str, list[ev.Group]]
    offset: int
    kept: dict[str, Any] = field(default_factory=dict)

    def objects(self) -> frozenset[str]:
        return frozenset(name for manifest in self.manifests for name in manifest.objects())


@dataclass
class TaskManager:
    """An incarnation: its live log as pieces `(object, after offset, up to offset)`, and its materializations."""

    number: int
    incarnation: int
    materialized: list[tuple[str, int]] = field(default_factory=list)
    pieces: list[tuple[str, int, int]] = field(default_factory=list)
    persisted: int = 0
    acknowledged: set[str] = field(default_factory=set)
    manifests: dict[int, Manifest] = field(default_factory=dict)
    sequence: int = 0

    def held(self) -> frozenset[str]:
        return frozenset([name for name, _ in self.materialized] + [name for name, _, _ in self.pieces])

    def manifest(self, name: str, cut: int) -> Manifest:
        base = max((each for each in self.materialized if each[1] <= cut), key=lambda each: each[1], default=None)
        start = base[1] if base else 0
        return Manifest(
            name, self.number, cut, base, [piece for piece in self.pieces if piece[2] > start and piece[1] < cut]
        )

    def completed(self, checkpoint_id: int) -> set[str]:
        """Truncate to the materialization the completed checkpoint uses; return the objects that we may delete."""
        manifest = self.manifests.get(checkpoint_id)
        if manifest is None or manifest.materialized is None:
            return set()
        boundary = manifest.materialized[1]
        before = self.held()
        self.materialized = [each for each in self.materialized if each[1] >= boundary]
        self.pieces = [piece for piece in self.pieces if piece[2] > boundary]
        return set(before - self.held() - self.acknowledged)


class GatheredObjects:
    """Stored committables, by their stand-ins."""

    def __init__(self) -> None:
        self._committables: dict[bytes, list[bytes]] = {}

    def store(self, command: Gather, epoch: int) -> Gathered:
        name = f"gathered/{epoch}/{command.gathering}".encode()
        self._committables[name] = list(command.committables)
        return Gathered(command.sink, command.gathering, name)

    def expanded(self, committables: list[bytes]) -> list[bytes]:
        return [one for each in committables for one in self._committables.get(each, [each])]
