"""The JobMaster's side of a PostgreSQL slot: owns reader and spool, plans reads, and releases segments."""

import zlib
from collections.abc import Callable, Mapping

from holdfast.errors import JobRefused
from holdfast.printable import logger
from holdfast.sources.base import Enumerator, EnumeratorContext, Offsets, SourcePlan
from holdfast.sources.postgres.catalog import Catalog
from holdfast.sources.postgres.chunks import check_frontiers
from holdfast.sources.postgres.decoding import Settings
from holdfast.sources.postgres.initial import NOT_BEGUN
from holdfast.sources.postgres.reader import Reader
from holdfast.sources.postgres.server import ReaderName, Server, SlotState
from holdfast.sources.postgres.slot_head import LSN_READ, SLOT, SPLIT, SYSTEM, SlotHead, SlotSegment
from holdfast.sources.postgres.writer import SegmentContent
from holdfast.sources.spooled.chain import find_root, follow, stored_segments
from holdfast.sources.spooled.segments import read_head
from holdfast.sources.spooled.spool import SEGMENT, SEQUENCE_IN, Spool, SpoolPosition
from holdfast.storage import names
from holdfast.storage.store import ObjectInfo

log = logger(__name__)

CATCH_UP_LOOK_S = 0.1


class PostgresEnumerator(Enumerator):
    """Plans the segments that the reader stored. The first call of `initial` or `restore` starts the reader."""

    def __init__(
        self,
        server: Server,
        catalog: Catalog,
        settings: Settings,
        split_transactions: bool,
        context: EnumeratorContext,
    ) -> None:
        self._server = server
        self._settings = settings
        self._context = context
        self._spool = Spool[SlotHead](SPLIT, split_transactions)
        self._system = server.identity()
        # The name includes the source, so that two sources of a job with the same slot do not end each other for ever.
        name = ReaderName(f"{context.job_id}.{zlib.crc32(context.source.encode()):08x}", context.epoch)
        self._reader = Reader(server.named(str(name)), catalog, settings, self._spool, context, self._system, name)

    # --- beginning ----------------------------------------------------------------------------------------------------

    def initial(self) -> Offsets:
        self._reader.claim.take()
        slot = self._server.slot(self._settings.slot)  # before the listing: confirmed changes are stored by now
        listed = stored_segments(self._context.store, self._context.source)
        if not self._taken_up(listed, slot):
            self._begin_chain(listed)
        self._reader.start()
        return self._offsets(SpoolPosition(0, 0))

    def restore(self, offsets: Offsets, objects: list[str]) -> None:
        place = self._place(offsets)
        for fact, now in ((SYSTEM, self._system), (SLOT, self._settings.slot)):
            if offsets.get(fact) != now:
                raise JobRefused(
                    f"source {self._context.source!r}: the checkpoint is of {fact} {offsets.get(fact)!r}, "
                    f"and this is {fact} {now!r}: give the {fact} of the job's first start, or start on a new storage"
                )
        self._reader.claim.take()
        listed = stored_segments(self._context.store, self._context.source)
        if objects[0] not in {info.name for info in listed}:
            self._check_gap((_number(objects[0]) or 0) - 1, listed)
        root = find_root(self._context.store, listed, objects[0], SlotHead)
        chain = self._chain(listed, root)
        self._check_gap(chain[-1].head.number, listed)
        if chain[-1].head.snapshot and place.segment <= 1:
            chain = self._only_first(chain)
        self._spool.reset(root.head.number, chain)
        self._reader.passed = place
        self._drop_older(listed, root, chain)
        self._reader.start()

    def _chain(self, listed: list[ObjectInfo], root: SlotSegment) -> list[SlotSegment]:
        """Return `root` and the segments after it."""
        context = self._context
        chain = [root, *follow(context.store, context.source, listed, root.head.number + 1, root, SlotHead)]
        check_frontiers(chain[-1].name, chain[-1].head.chunks, self._settings.tables)
        return chain

    def _check_gap(self, last: int, listed: list[ObjectInfo]) -> None:
        """Refuse an older checkpoint if segments after it are missing, because a newer checkpoint had passed them."""
        later = [number for info in listed if (number := _number(info.name)) is not None and number > last]
        if later and min(later) > last + 1:
            raise JobRefused(
                f"source {self._context.source!r}: the checkpoint is not the newest. The changes after it, segments "
                f"{last + 1} to {min(later) - 1}, were deleted once a newer checkpoint was past them, and slot "
                f"{self._settings.slot!r} does not send them again. Go on from the newest checkpoint (no start_from), "
                "or start on a new storage, with a snapshot and another slot"
            )

    def _taken_up(self, listed: list[ObjectInfo], slot: SlotState | None) -> bool:
        """Continue with the segments that an earlier driver stored before its first checkpoint, if the slot is still
        the same."""
        for root in self._roots(listed):
            chain = self._chain(listed, root)
            if self._fits(chain[-1], slot):
                self._spool.reset(0, self._only_first(chain) if chain[-1].head.snapshot else chain)
                return True
        return False

    def _fits(self, last: SlotSegment, slot: SlotState | None) -> bool:
        """Return whether the slot continues where a chain ends. After an unfinished snapshot, the slot is made anew, so
        any slot fits."""
        ours = last.head.system == self._system and last.head.slot == self._settings.slot
        goes_on = slot is not None and slot.confirmed_lsn <= last.head.end_lsn
        return ours and (bool(last.head.snapshot) or goes_on)

    def _roots(self, listed: list[ObjectInfo]) -> list[SlotSegment]:
        """Return the first segments of chains, those of the newest epoch first."""
        first = [info for info in listed if _number(info.name) == 0]
        newest = sorted(first, key=lambda info: info.name, reverse=True)
        return [read_head(self._context.store, info.name, info.size, SlotHead) for info in newest]

    def _only_first(self, chain: list[SlotSegment]) -> list[SlotSegment]:
        """Delete the segments of an unfinished snapshot; return the first segment of the chain."""
        self._context.store.delete([each.name for each in chain[1:]])
        return chain[:1]

    def _begin_chain(self, listed: list[ObjectInfo]) -> None:
        """Store the first segment, which has no rows: it shows that the slot belongs to this source."""
        slot = self._server.slot(self._settings.slot)
        self._context.store.delete([info.name for info in listed])
        self._spool.reset(0, [])
        if self._settings.snapshot == "initial":
            if slot is not None:
                raise JobRefused(
                    f"source {self._context.source!r}: slot {self._settings.slot!r} exists already, but this "
                    "storage holds nothing of the slot, so a snapshot would not fit its changes. Drop the slot "
                    "(pg_drop_replication_slot), give another slot, or snapshot='never' to read only the slot's changes"
                )
            self._reader.writer.write(SegmentContent(0, [], end_lsn=0, snapshot=NOT_BEGUN))
            return
        lsn = self._server.create_slot(self._settings.slot) if slot is None else slot.confirmed_lsn
        chunks = dict.fromkeys(self._settings.tables) if self._settings.snapshot == "chunked" else None
        self._reader.writer.write(SegmentContent(0, [0], end_lsn=lsn, chunks=chunks))

    def _drop_older(self, listed: list[ObjectInfo], root: SlotSegment, chain: list[SlotSegment]) -> None:
        """Delete segments of older epochs that lie before the root or beside the chain."""
        kept = {each.name for each in chain}
        self._context.store.delete(
            [info.name for info in listed if info.name not in kept and (_number(info.name) or 0) < root.head.number]
        )

    # --- planning -----------------------------------------------------------------------------------------------------

    def begin_look(self) -> Callable[[], bool]:
        return self._reader.begin_look()

    def latest(self) -> Offsets:
        if self._context.available_now:
            while not self._reader.caught_up.wait(CATCH_UP_LOOK_S) and self._reader.is_running:
                self._raise_problem()
        self._raise_problem()
        return self._offsets(self._spool.last_cut if self._context.available_now else self._spool.end)

    def _raise_problem(self) -> None:
        problem = self._reader.problem
        if problem is not None:
            raise problem

    def plan(self, start: Offsets, until: Offsets, rows_max: int, bytes_max: int) -> SourcePlan:
        end, reads = self._spool.plan(self._place(start), self._place(until), rows_max, bytes_max)
        return SourcePlan(self._offsets(end), reads, self._spool.availability(end))

    def open_splits(self, offsets: Offsets) -> list[str]:
        return [SPLIT]

    def objects(self, offsets: Offsets) -> list[str]:
        first = self._place(offsets).segment
        if self._context.goes_back:
            first = min(first, self._reader.passed.segment)
        return self._spool.names(SpoolPosition(max(0, first - 1), 0))

    def completed(self, offsets: Offsets) -> None:
        place = self._place(offsets)
        self._reader.passed = place
        # The segment directly before the place stays, because its head has the state at the place.
        before = SpoolPosition(place.segment - 1, 0)
        self._context.store.delete([each.name for each in self._spool.let_go(before)])

    def lag(self, offsets: Offsets) -> Mapping[str, int]:
        return {SPLIT: self._spool.waiting(self._place(offsets))}

    @property
    def message(self) -> str:
        return self._reader.message

    def close(self) -> None:
        self._reader.close()

    def _place(self, offsets: Offsets) -> SpoolPosition:
        return SpoolPosition.from_offsets(offsets, self._context.source, "a PostgresCdcSource")

    def _lsn_at(self, place: SpoolPosition) -> int:
        before = self._spool.before(place)
        return 0 if before is None else before.head.end_lsn

    def _offsets(self, place: SpoolPosition) -> Offsets:
        return {
            SEGMENT: place.segment,
            SEQUENCE_IN: place.sequence,
            LSN_READ: self._lsn_at(place),
            SYSTEM: self._system,
            SLOT: self._settings.slot,
        }


def _number(name: str) -> int | None:
    parsed = names.parse(name)
    return parsed.number if isinstance(parsed, names.SegmentName) else None
