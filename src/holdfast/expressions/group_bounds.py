"""Bounds of the values of columns in groups of rows, as files store them. This module loads no parser."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

GroupFlags = npt.NDArray[np.bool_]
"""An array with a flag for each group."""


@dataclass(frozen=True)
class ValueBounds:
    """The least and greatest value of a column in each group, null if unknown or if all values are null; and the number
    of nulls in each group, -1 if unknown."""

    least: pa.Array
    greatest: pa.Array
    nulls: npt.NDArray[np.int64]


@dataclass(frozen=True)
class KnownGroups:
    """The bounds of columns, by name, and the number of rows of each group."""

    bounds: Mapping[str, ValueBounds]
    rows: npt.NDArray[np.int64]
