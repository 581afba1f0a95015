"""Pauses between attempts that grow with each failure."""

import math

DOUBLINGS_MAX = 60
"""Bound on doublings, so that a pause stays a finite number."""


def doubled_s(first_s: float, failures: int, most_s: float = math.inf) -> float:
    """`first_s` seconds after the first failure in a row, then twice as long each time, at most `most_s`."""
    return min(most_s, first_s * 2.0 ** min(failures - 1, DOUBLINGS_MAX))
