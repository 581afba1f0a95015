"""Events of records that are held while a savepoint is copied from them.

    SavepointRequested ──► a checkpoint ──► Resolve ──► HoldNewest ──► Resolve(number) … copying … ──► LetGo(number)

The newest record is never expired, so a hold of the newest one cannot come too late. A hold waits until no record is
unanswered: a record that was sent before does not say that it retains the one that is held.
"""

from dataclasses import dataclass

from holdfast.ids import JournalNumber


@dataclass(frozen=True, slots=True)
class SavepointRequested:
    """Somebody asks for a checkpoint of everything committed so far, to copy it; answered by one `Resolve`."""

    request_id: str


@dataclass(frozen=True, slots=True)
class HoldNewest:
    """Keep the newest record, and all that it names; answered by one `Resolve` with its number."""

    request_id: str


@dataclass(frozen=True, slots=True)
class LetGo:
    """A record that was held need not be kept any more for this hold."""

    number: JournalNumber


HoldEvent = SavepointRequested | HoldNewest | LetGo
