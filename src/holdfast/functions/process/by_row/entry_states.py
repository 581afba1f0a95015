"""The running `ListState` and `MapState` as a user's function sees them, over their cells."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from holdfast.errors import UserFunctionError
from holdfast.functions.process.by_row.entries_of_keys import ABSENT
from holdfast.functions.process.by_row.entry_cells import ListCells, MapCells
from holdfast.functions.process.shared.states import ListState, MapState
from holdfast.value_fits import integer_range

_UNREAD: Any = object()


class KeyedMapState(MapState):
    """The running `MapState`. `get` and `put` are closures instead of methods, since they decide the cost of a row."""

    def __init__(self, declared: MapState, cells: MapCells) -> None:
        super().__init__(declared.key_type, declared.type, declared.default)
        self._cells = cells
        self._default = cells.codec.put(declared.default)
        self.__dict__["get"] = _map_reader(cells, self._default)
        self.__dict__["put"] = _map_writer(cells)

    def _given(self, kept: Any) -> Any:
        get = self._cells.codec.get
        return kept if get is None else get(kept)

    def contains(self, map_key: Any, groups: Any = None) -> bool:
        return self._cells.read(self._cells.key(map_key)) is not ABSENT

    def remove(self, map_key: Any, groups: Any = None) -> None:
        self._cells.remove(self._cells.key(map_key))

    def update(self, entries: Mapping[Any, Any]) -> None:
        for map_key, value in entries.items():
            self.put(map_key, value)

    def keys(self) -> list[Any]:
        return [map_key for map_key, _ in self._cells.all()]

    def values(self) -> list[Any]:
        return [self._given(kept) for _, kept in self._cells.all()]

    def items(self) -> list[tuple[Any, Any]]:
        return [(map_key, self._given(kept)) for map_key, kept in self._cells.all()]

    def is_empty(self) -> bool:
        return not self._cells.all()

    def clear(self) -> None:
        self._cells.clear()


def _map_reader(cells: MapCells, default: Any) -> Callable[..., Any]:
    of_keys, cursor, copy, usual_key = cells.of_keys, cells.cursor, cells.codec.get, cells.usual_key

    def get(map_key: Any, groups: Any = None) -> Any:
        current = of_keys.get(cursor.slot)
        kept = _UNREAD
        if current is not None and type(map_key) is usual_key:
            kept = current.found.get(map_key, _UNREAD)
        if kept is _UNREAD:
            kept = cells.read(cells.key(map_key))
        if kept is ABSENT:
            kept = default
        return kept if copy is None else copy(kept)

    return get


def _map_writer(cells: MapCells) -> Callable[..., None]:
    of_keys, cursor, usual_key = cells.of_keys, cells.cursor, cells.usual_key
    usual: Any = cells.codec.usual
    is_integer, is_text = usual is int, usual is str
    low, high = integer_range(cells.codec.column_type) if is_integer else (0, 0)

    def put(map_key: Any, value: Any, groups: Any = None) -> None:
        current = of_keys.get(cursor.slot)
        if (
            current is not None
            and type(value) is usual
            and type(map_key) is usual_key
            and map_key in current.found
            and (not is_integer or low <= value <= high)
            and (not is_text or value.isascii())  # of others, some have no form in UTF-8
        ):
            current.found[map_key] = value
            current.written[map_key] = None
        else:
            put_other(map_key, value)

    def put_other(map_key: Any, value: Any, groups: Any = None) -> None:
        cells.put(cells.key(map_key), value)

    return put_other if cells.undo_log.is_kept else put


class KeyedListState(ListState):
    """The running `ListState`. `get` and `update` are closures instead of methods, since they decide the cost of a
    row."""

    def __init__(self, declared: ListState, cells: ListCells) -> None:
        super().__init__(declared.type)
        self._cells = cells
        self.__dict__["get"] = _list_reader(cells)
        self.__dict__["update"] = _list_writer(cells)

    def add(self, value: Any) -> None:
        self._cells.add(value)

    def append(self, values: Any, groups: Any = None) -> None:
        raise UserFunctionError("ListState.append() is for a BatchFunction; a ProcessFunction takes add(value)")

    def clear(self) -> None:
        self._cells.replace([])


def _list_reader(cells: ListCells) -> Callable[[], list[Any]]:
    of_keys, cursor, copy = cells.of_keys, cells.cursor, cells.codec.get

    def get() -> list[Any]:
        current = of_keys.get(cursor.slot)
        if current is None or (kept := current.stored if current.replaced is None else current.replaced) is None:
            kept = cells.all()
        elif current.added:
            kept = kept + current.added
        return kept.copy() if copy is None else list(map(copy, kept))

    return get


def _list_writer(cells: ListCells) -> Callable[[Iterable[Any]], None]:
    of_keys, cursor, are_usual = cells.of_keys, cells.cursor, cells.codec.are_usual

    def update(values: Iterable[Any]) -> None:
        current = of_keys.get(cursor.slot)
        if current is not None and type(values) is list and are_usual(values):
            current.replace(values.copy())
        else:
            cells.replace(values)

    return cells.replace if cells.undo_log.is_kept else update
