"""Events of records that are held while a savepoint is copied from them, and of objects on their way to an owner.

    SavepointRequested ──► a checkpoint ──► Resolve ──► HoldNewest ──► Resolve(number) … copying … ──► LetGo(number)

The newest record is never expired, so a hold of the newest record cannot come too late. A hold waits until no record is
unanswered: a record that was sent before does not say that it retains the held record.
"""

from dataclasses import dataclass

from holdfast.ids import JournalNumber


@dataclass(frozen=True, slots=True)
class SavepointRequested:
    """A request for a checkpoint of everything committed so far, to copy it; a `Resolve` answers it."""

    request_id: str


@dataclass(frozen=True, slots=True)
class HoldNewest:
    """Keep the newest record, and all objects that it names; a `Resolve` with its number answers."""

    request_id: str


@dataclass(frozen=True, slots=True)
class LetGo:
    """A record that was held need not be kept any more for this hold."""

    number: JournalNumber


@dataclass(frozen=True, slots=True)
class BaseMade:
    """A table that a follower has stored for a TaskManager; None: its owner is not known any more.

    `made`: new objects, which have no other owner now. `reused`: objects of earlier materializations.
    """

    task_manager: int | None
    made: frozenset[str]
    reused: frozenset[str]
    base: object


@dataclass(frozen=True, slots=True)
class HandOn:
    """Give a TaskManager a table that a follower has stored, with the news of the next completed checkpoint."""

    task_manager: int
    base: object


HoldEvent = SavepointRequested | HoldNewest | LetGo | BaseMade
