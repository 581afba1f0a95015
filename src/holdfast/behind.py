"""Splits that are behind because they failed, as they appear in records, in a query's status and on its page. Pure.

fails ──► stuck: every record has its old position ──advances──► catches up ──reaches the newest rows──► forgotten
             │  ▲
        parked  └── `query.retry`, or the next start
"""

from collections.abc import Mapping

import msgspec

REASON_CHARACTERS_MAX = 200
"""Characters of a reason that a record keeps. A higher value makes records longer when many splits fail."""

Positions = Mapping[str, Mapping[str, int | float | str | bool | None]]


class SplitBehind(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A split that failed and has not caught up since.

    `since` is the number of the checkpoint record at which the split got stuck: the newest record at its first failure,
    or the first record with its present position. 0: no record contains it yet. `failures` counts checkpoints in a row
    without an advance. An empty `reason` means that the split advances again. `skipped` holds positions, not reached
    yet, of rows that become dead letters as soon as they are read.
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

    `older` and `older_offsets` come from the previous record, whose number is `before`.
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
