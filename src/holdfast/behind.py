"""Splits that are behind because they failed: as records, the status of a query and its page have them. Pure.

fails ──► stands: every record has its old position ──advances──► catches up ──reaches the newest rows──► forgotten
             │  ▲
        parked  └── `query.retry`, or the next start
"""

from collections.abc import Mapping

import msgspec

REASON_CHARACTERS_MAX = 200
"""Characters of a reason that a record keeps; more make it longer where many splits fail."""

Positions = Mapping[str, Mapping[str, int | float | str | bool | None]]


class SplitBehind(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A split that failed and has not caught up since.

    `since` is the number of the checkpoint record since which it stands: the newest at its first failure, or the first
    with its present position. 0: it is not recorded yet.
    `failures` counts checkpoints in a row without an advance; an empty `reason` says that the split advances again.
    `skipped`: positions of rows, not reached yet, that are put aside as soon as they are read.
    """

    since: int = 0
    failures: int = 0
    reason: str = ""
    parked: bool = False
    skipped: tuple[int, ...] = ()


Behind = dict[str, dict[str, SplitBehind]]
"""Splits that are behind, by source and split."""


def recorded(
    behind: Behind, offsets: Positions, number: int, before: int, older: Behind, older_offsets: Positions
) -> Behind:
    """Return the stuck splits to store in record `number`, each with the record at which it got stuck.

    `older` and `older_offsets` are of the record `before` this one.
    """

    def since(source: str, split: str) -> int:
        if offsets[source].get(split) != older_offsets.get(source, {}).get(split):
            return number
        found = older.get(source, {}).get(split)
        return before if found is None else found.since

    return {
        source: {split: msgspec.structs.replace(each, since=since(source, split)) for split, each in splits.items()}
        for source, splits in behind.items()
    }
