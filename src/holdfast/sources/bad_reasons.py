"""Counts of bad rows by reason, for people. The rows themselves are in the dead letters. Pure."""

import re
from collections import Counter
from collections.abc import Sequence

from holdfast.sources.base import BadRow

REASONS_MAX = 20
"""Number of reasons that a task counts separately; a higher value makes the results of tasks with many reasons
larger."""
REASON_LENGTH_MAX = 200
"""Characters of a reason by which rows are counted together; a higher value distinguishes more reasons."""
NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d.,:_]*(?!\w)")

BadReason = tuple[str, str, str]
"""Source, operator, and the reason in general: its first line, with `…` for numbers."""
OTHER_REASONS: BadReason = ("", "", "other reasons")


def counted_reasons(bad: Sequence[BadRow]) -> tuple[tuple[BadReason, int], ...]:
    """Count bad rows by source, operator and reason; the rarest of many reasons are counted as `OTHER_REASONS`."""
    counts = Counter((row.source, row.operator, _general(row.reason)) for row in bad)
    common = counts.most_common(REASONS_MAX)
    rest = counts.total() - sum(rows for _, rows in common)
    return (*common, *([(OTHER_REASONS, rest)] if rest else []))


def _general(reason: str) -> str:
    first = reason.strip().partition("\n")[0]
    return NUMBER.sub("…", first[:REASON_LENGTH_MAX])
