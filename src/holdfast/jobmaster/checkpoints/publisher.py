"""Publication of a sink's groups on a thread of its own, one by one, in the coordinator's order."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

from holdfast import failpoints
from holdfast.availability import Refusal, ask
from holdfast.checkpoint import events
from holdfast.checkpoint.events import Event
from holdfast.errors import USER_ERRORS, CorruptObject, ObjectNotFound, PublishFailed, StorageError, described
from holdfast.journal.codec import StoredCommittables, decode_committables
from holdfast.printable import logger
from holdfast.sinks.base import Gone, PublishContext, Sink
from holdfast.sinks.gathered import Expanded, gathered_names
from holdfast.storage import names
from holdfast.storage.lost import lost
from holdfast.storage.reading import read
from holdfast.storage.store import ObjectStore

log = logger(__name__)

NEVER_TAKEN = ("File name too long", "KeyTooLong")
"""Parts of the error messages of file systems and object stores about a name that they never accept."""


class Publisher:
    """Loads a group's committables, and has the sink publish or discard them."""

    def __init__(self, sink: Sink, context: PublishContext, store: ObjectStore) -> None:
        self._sink = sink
        self._context = context
        self._store = store
        self._thread = ThreadPoolExecutor(1, f"holdfast-publish-{context.sink}")
        self._closed = False

    def publish(self, command: events.Publish, post: Callable[[Event], None]) -> None:
        """Publish a group in the background; the outcome is posted."""
        if not self._closed:
            self._thread.submit(self._publish, command, post)

    def _publish(self, command: events.Publish, post: Callable[[Event], None]) -> None:
        failpoints.hit("jobmaster.publish.before")
        try:
            self._sink.publish(command.number, *self._load(command.object))
        except (PublishFailed, CorruptObject, ObjectNotFound) as error:
            post(events.PublicationFailed(command.sink, command.number, str(error), io=False))
            return
        except (StorageError, OSError) as error:
            passing = not any(text in str(error) for text in NEVER_TAKEN)
            log.warning("sink %r could not publish group %d: %s", command.sink, command.number, error)
            post(events.PublicationFailed(command.sink, command.number, str(error), io=passing))
            return
        except USER_ERRORS as error:
            log.exception("sink %r failed", command.sink)
            reason = described(error)
            post(events.PublicationFailed(command.sink, command.number, reason, io=False))
            return
        failpoints.hit("jobmaster.publish.after")
        post(events.Published(command.sink, command.number, self.awaited_us))

    def refusal(self) -> Refusal | None:
        """Ask the sink if a cut may be taken after the last committed batch; None: it may."""
        return ask(f"sink {self._context.sink!r}", self._sink.is_snapshot_available)

    @property
    def awaited_us(self) -> int | None:
        """The watermark at which the sink next has output to finish; None: it has nothing left to finish."""
        return self._sink.awaited_us

    @property
    def layout(self) -> bytes:
        """Settings by which groups of this start are published."""
        return self._sink.layout(self._context)

    def discard(self, name: str) -> None:
        """Delete the staged files of a stored group."""
        failpoints.hit("jobmaster.discard.before")
        self.drop(self._read(name).committables)

    def drop(self, committables: list[bytes]) -> None:
        """Delete the staged files of these committables, and then the objects of gathered committables.

        If an object of gathered committables is gone, its staged files are gone too.
        """
        gathered = gathered_names(committables, self._context.owner)
        with suppress(ObjectNotFound):
            self._sink.discard(Expanded(committables, self._store, self._context.owner), self._context)
        self._store.delete(gathered)

    def sweep(self, gone: Gone, named: list[bytes]) -> None:
        """Delete staged files at the sink's own target whose writers are `gone` and that no committable in `named`
        needs."""
        self._sink.sweep(gone, named, self._context)

    def _load(self, name: str) -> tuple[Expanded, PublishContext]:
        try:
            stored = self._read(name)
        except ObjectNotFound as error:
            sink = self._context.sink
            instead = f"give the sink a new name, and give up this output with job.start(drop_state=[{sink!r}])"
            raise lost(f"the output that sink {sink!r} has yet to publish is gone", error, instead) from error
        context = replace(self._context, layout=stored.layout, watermark_us=stored.watermark_us)
        return Expanded(stored.committables, self._store, context.owner), context

    def _read(self, name: str) -> StoredCommittables:
        stored = decode_committables(name, read(self._store, name))
        names.check_writer(name, stored.job, [self._context.job_id])
        if stored.sink != self._context.sink:
            raise CorruptObject(f"{name}: holds output of sink {stored.sink!r}, expected sink {self._context.sink!r}")
        return stored

    def close(self) -> None:
        """Wait for the group being published; drop the others, which the record still holds."""
        self._closed = True
        self._thread.shutdown(wait=True, cancel_futures=True)
