"""The form in which the states of functions keep Python values: fitted to a declared type, or packed by msgpack."""

from typing import Any

import pyarrow as pa

from holdfast.packed_values import pack, unpack
from holdfast.state.widening import packed_field
from holdfast.value_fits import Fit, copier_for, fit_for, plain_class, usual_values


class Codec:
    """Converts values of a declared type to the kept form and back: the form of `fit_for`, or msgpack if there is no
    type."""

    def __init__(self, kind: pa.DataType | None) -> None:
        self.column_type: pa.DataType = packed_field("").type if kind is None else kind
        self.put: Fit = _pack_or_none if kind is None else fit_for(kind)
        self.usual: type | None = None if kind is None else plain_class(kind)
        """The class whose values are kept as they are, integers within the type's range; None: there is none."""
        self.are_usual = usual_values(kind, True) if kind is not None else lambda values: False
        """A check for many values at once: True if all of them are kept as they are."""
        self.get: Fit | None = None
        """Makes a copy for the user from the kept value; None if the kept value is immutable and may be handed out
        itself."""
        if kind is None:
            self.get = _unpack_or_none
        else:
            self.get = copier_for(kind)
        self._is_packed = kind is None

    def field(self, name: str) -> pa.Field:
        """The column that keeps these values."""
        return packed_field(name) if self._is_packed else pa.field(name, self.column_type)


def _pack_or_none(value: Any) -> bytes | None:
    return None if value is None else pack(value)


def _unpack_or_none(data: bytes | None) -> Any:
    return None if data is None else unpack(data)
