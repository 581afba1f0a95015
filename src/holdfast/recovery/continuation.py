"""The pieces of log that advance a table from a checkpoint to a later checkpoint. Pure.

    held  n:    materialized │ p1 p2 p3
    new   n+1:  materialized │ p1 p2 p3 p4 p5        the same parts: apply p4 p5
    new   n+1:  another          │ p3 p4 p5          the owner materialized up to p2: apply p4 p5, read no parts
    new   n+1:  another                  │ p5        p4 is in the parts and nowhere else: the table is made anew
    new   n+1:  materialized │ p1+p2+p3+p4 p5        the owner merged its log: apply both, also if held has p1 p2 alone

The name of an object is used once, and so is the number of a change set within a log. So a piece that both handles name
has the same changes, and the table after this piece is the same, whatever the handles name before it. The numbers of
change sets alone prove nothing: a table that is restored from parts counts them from 0 again. A small piece that an
acknowledgement carries may be stored twice, with two consecutive checkpoints of the same epoch: it is recognised by its
checksum.

On the same materialized parts, and within an epoch, the numbers do prove that a merged piece has the changes of another
piece: they go on after a restore from a checkpoint that names log, and a return to an older checkpoint begins an epoch.
If a table was restored from a checkpoint without log, its numbers begin at 0 again, below those of the earlier log on
the same parts. Changes that were applied may be applied again together with all after them. A large range of change
sets is stored as several pieces for consecutive key groups.
"""

from collections.abc import Sequence

import msgspec

from holdfast.formats.handles import LogPiece, TableHandle
from holdfast.ids import Epoch
from holdfast.storage import names


def continuation(held: Sequence[TableHandle], new: TableHandle) -> list[LogPiece] | None:
    """Return the pieces that advance a table from the state of `held` to the state of `new`; None if no pieces do.

    `held` are the handles at the earlier checkpoint, in order of key groups, of the same table that share key groups
    with `new`.
    """
    before = [each.narrow(new.key_group_start, new.key_group_stop) for each in held]
    parts = [part for each in before for part in each.materialized]
    pieces = [piece for each in before for piece in each.log]
    if (
        parts == new.materialized
        and len(pieces) <= len(new.log)
        and all(_is_same(known, piece) for known, piece in zip(pieces, new.log, strict=False))
    ):
        return new.log[len(pieces) :]
    # The logs of several handles cannot be compared with each other.
    if len(before) > 1 or not pieces:
        return None
    last = pieces[-1]
    for place, piece in enumerate(new.log):
        if _holds_end_of(piece, last):
            return _after(last, new.log, place)
    if parts != new.materialized or not new.log or new.log[0].sqn_start < pieces[0].sqn_start:
        return None
    for place, piece in enumerate(new.log):
        if _is_merged(piece, last):
            return _after(last, new.log, place)
    return None


def _after(last: LogPiece, log: Sequence[LogPiece], place: int) -> list[LogPiece]:
    """Return the changes after `last`, whose end is in the piece at `place`.

    The pieces directly before it with the same numbers and lower key groups are of the same range as it is.
    """
    numbers = log[place].sqn_start, log[place].sqn_stop
    while (
        place
        and (log[place - 1].sqn_start, log[place - 1].sqn_stop) == numbers
        and log[place - 1].key_group_stop <= log[place].key_group_start
    ):
        place -= 1
    return [
        msgspec.structs.replace(each, sqn_start=max(each.sqn_start, last.sqn_stop))
        for each in log[place:]
        if each.sqn_stop > last.sqn_stop
    ]


def _holds_end_of(piece: LogPiece, last: LogPiece) -> bool:
    """True if the last change set of `last` is in `piece`."""
    if (piece.key_group_start, piece.key_group_stop) != (last.key_group_start, last.key_group_stop):
        return False
    if (piece.object, piece.offset) == (last.object, last.offset):
        return piece.sqn_start < last.sqn_stop <= piece.sqn_stop
    return _is_stored_again(piece, last)


def _is_same(known: LogPiece, piece: LogPiece) -> bool:
    return known == piece or _is_stored_again(known, piece)


def _is_stored_again(known: LogPiece, piece: LogPiece) -> bool:
    """True if a piece carried by an acknowledgement was stored once more, because its first place was not known yet."""
    moved = msgspec.structs.replace(known, object=piece.object, offset=piece.offset)
    if known.head_crc is None or moved != piece:
        return False
    return _epoch(known) == _epoch(piece) is not None and any(
        isinstance(names.parse(each.object), names.GatheredName) for each in (known, piece)
    )


def _is_merged(piece: LogPiece, last: LogPiece) -> bool:
    """True if the owner merged `last` with others to `piece`, or to `piece` and others for other key groups."""
    groups = range(max(piece.key_group_start, last.key_group_start), min(piece.key_group_stop, last.key_group_stop))
    wider = piece.sqn_stop - piece.sqn_start > last.sqn_stop - last.sqn_start
    has_end = wider and piece.sqn_start < last.sqn_stop <= piece.sqn_stop
    return has_end and len(groups) > 0 and _epoch(piece) == _epoch(last) is not None


def _epoch(piece: LogPiece) -> Epoch | None:
    """Return the epoch in which a piece was stored, if its object's name has one."""
    found = names.parse(piece.object)
    return found.epoch if isinstance(found, names.GatheredName | names.ChangelogName) else None
