"""Functions of users on keyed streams, as declared: the base classes, their checks, and the operator's settings.

    class Count(hf.ProcessFunction):
        n = hf.ValueState(pa.int64(), default=0)

        def process(self, row, ctx):
            n = self.n.value() + 1
            self.n.update(n)
            yield {"k": row.k, "n": n}

    class FastCount(hf.BatchFunction):
        n = hf.ValueState(pa.int64(), default=0)

        def process(self, batch, keys, groups, ctx):
            n = self.n.values().to_numpy() + np.bincount(groups, minlength=keys.num_rows)
            self.n.update(n)
            yield pa.record_batch([keys["k"], n], names=["k", "n"])

Each subtask runs a copy of the instance, made by a cloudpickle round trip before the first batch. Everything that
can be known from the declaration is checked there: `SettingsError` (the function) or `JobRefused` (the schema).

Does not own the running: `row_operator.py`, `batch_operator.py`.
"""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, Literal

import cloudpickle
import numpy as np
import pyarrow as pa

from holdfast.availability import SnapshotAvailability
from holdfast.code_shipping import pickled
from holdfast.errors import JobRefused, SettingsError, UserFunctionError
from holdfast.functions.operator import NewTable, Operator, OperatorInput, OperatorSpec, TableSchema
from holdfast.functions.process.by_array.batch_operator import BatchOperator
from holdfast.functions.process.by_row.row_operator import ProcessOperator
from holdfast.functions.process.of_subtask.broadcast import (
    BroadcastState,
    broadcast_schema,
    broadcast_table,
    check_broadcasts,
    declared_broadcasts,
)
from holdfast.functions.process.of_subtask.list_states import SubtaskListState, UnionListState, list_table
from holdfast.functions.process.shared.states import ListState, MapState, State, ValueState, declared_states
from holdfast.functions.timing.timers import TIMERS, NoTimers, TimerService, timers_schema
from holdfast.schema import CHANGE_TYPE, StreamKind
from holdfast.state.table import StateTable
from holdfast.value_fits import fit_for


class KeyedFunction:
    """The base of both kinds of function. `open` and `close` are for resources that cannot be pickled."""

    def open(self, ctx: "Context") -> None:
        """Called once on each copy before its first rows. There is no current key, so states of keys cannot be used.

        A `UnionListState` and a `SplitListState` can be read: they hold the entries of the checkpoint from which the
        subtask starts. A function that has any is opened anew, as another copy, each time that the job goes back to a
        checkpoint.
        """
        return

    def close(self) -> None:
        """Called once when the subtask ends in good order; not when its process is killed."""
        return

    def is_snapshot_available(self) -> SnapshotAvailability:
        """Say whether a checkpoint may be cut now; called on each copy after each batch was committed.

        Answer `SnapshotAvailability.SOFT_FAILURE.because(reason)` if state or an external system is halfway through
        something that a restart could not take up again, for example an open transaction. A checkpoint that is due
        is then cut at the first later batch at which nobody refuses. `HARD_FAILURE` also counts as a failed checkpoint
        (`CheckpointConfig.tolerable_failed_checkpoints`), as does an error in this method.

        There is no current key, so states cannot be used; answer from an attribute that `process` keeps. A failed batch
        is processed again by the same copy, so keep the attribute in a form that repeated rows do not spoil.
        """
        return SnapshotAvailability.AVAILABLE

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(getattr(type(self), name, None), BroadcastState):
            raise AttributeError(f"{name!r} is a broadcast state of {type(self).__name__}, which is only read")
        if isinstance(getattr(type(self), name, None), State):
            raise AttributeError(
                f"{name!r} is a state of {type(self).__name__}; put a value with self.{name}.update(…)"
            )
        super().__setattr__(name, value)


class ProcessFunction(KeyedFunction):
    """A function of a row and the states of its key.

    A function that defines `on_timer(self, timestamp, ctx)` can register timers (`ctx.timers`). It is called for each
    timer that is due, after the batch's rows, with the states of the timer's key; it gives output rows as `process`
    does.
    Event-time timers fire in order of their timestamps.
    """

    def process(self, row: Any, ctx: "Context") -> Iterable[dict[str, Any] | tuple[Any, ...]] | None:
        """Called for each row, in the order of arrival.

        Parameters
        ----------
        row : named tuple
            The columns of the input; a name that Python does not allow becomes `_<position>`.
        ctx : Context

        Returns
        -------
        A generator (or list) of output rows: dicts with exactly the schema's columns, or tuples in their order.
        """
        raise SettingsError(f"{type(self).__name__} has no process(self, row, ctx)")


class BatchFunction(KeyedFunction):
    """A function of many rows and the states of their keys, as arrays: `ValueState`, `ListState` and `MapState`.

    A function that defines `on_timers(self, keys, timestamps, ctx)` can register timers as arrays (`ctx.timers`). It is
    called after the batch's rows with distinct keys and the time of a due timer of each, earliest first, as often as
    keys have timers that are due; it gives output as `process` does.
    """

    def process(
        self, batch: pa.RecordBatch, keys: pa.RecordBatch, groups: "np.ndarray[Any, np.dtype[np.int64]]", ctx: "Context"
    ) -> pa.RecordBatch | Iterable[pa.RecordBatch] | None:
        """Called once or several times a batch, with rows in the order of arrival.

        Parameters
        ----------
        batch : the rows
        keys : their distinct keys, in order of first appearance (key columns only)
        groups : for each row, the index of its key in `keys`
        ctx : the batch's times, and the states

        Returns
        -------
        A record batch of the declared schema, or a generator of them, or None.
        """
        raise SettingsError(f"{type(self).__name__} has no process(self, batch, keys, groups, ctx)")


@dataclass
class Context:
    """Facts that a function may ask for. `key` is the key's value, or a named tuple if `key_by` has several columns.

    In a `BatchFunction`, and in `open`, there is no key (None). `batch_time` is fixed by the batch's plan and the same
    when the batch is processed again; None in `open`. `watermark` is that of the operator's inputs; None without
    `with_watermark`, and before any row came. `timestamp` is the row's value of the watermark's column, in `on_timer`
    the timer's; asking for it raises where the input no longer has that column. Both have a time zone if the column
    has. `timers` registers and deletes timers of the current key.
    """

    operator: str
    subtask: int
    key: Any = None
    batch_time: datetime | None = None
    watermark: datetime | None = None
    timers: TimerService = field(default_factory=NoTimers)
    no_timestamp: str = ""
    """The reason why rows have no timestamp, if they should have one."""
    _timestamp: datetime | None = None

    @property
    def timestamp(self) -> datetime | None:
        if self._timestamp is None and self.no_timestamp:
            raise UserFunctionError(self.no_timestamp)
        return self._timestamp

    @timestamp.setter
    def timestamp(self, timestamp: datetime | None) -> None:
        self._timestamp = timestamp


def check_function(function: Any) -> None:
    """Check all that needs no schema; raises `SettingsError`."""
    if not isinstance(function, ProcessFunction | BatchFunction):
        hint = "; give an instance, not the class" if isinstance(function, type) else ""
        raise SettingsError(
            f"process() got {function!r}; expected an instance of a ProcessFunction or BatchFunction{hint}"
        )
    name = type(function).__name__
    if type(function).process in (ProcessFunction.process, BatchFunction.process):
        raise SettingsError(f"{name} does not define process(); it is called for the operator's rows")
    if hasattr(function, "on_timer"):
        if isinstance(function, BatchFunction):
            raise SettingsError(
                f"{name} defines on_timer(), for a single key; a BatchFunction has on_timers(keys, timestamps, ctx)"
            )
        _check_signature(name, "on_timer", function.on_timer, ("timestamp", "ctx"))
    if hasattr(function, "on_timers"):
        if isinstance(function, ProcessFunction):
            raise SettingsError(f"{name} defines on_timers(), but a ProcessFunction has on_timer(timestamp, ctx)")
        _check_signature(name, "on_timers", function.on_timers, ("keys", "timestamps", "ctx"))
    arguments = ("row", "ctx") if isinstance(function, ProcessFunction) else ("batch", "keys", "groups", "ctx")
    _check_signature(name, "process", function.process, arguments)
    _check_signature(name, "open", function.open, ("ctx",))
    _check_signature(name, "close", function.close, ())
    _check_signature(name, "is_snapshot_available", function.is_snapshot_available, ())
    _check_states(name, function)
    try:
        cloudpickle.loads(pickled(function))
    except Exception as error:  # pickling runs code of the user, which may raise anything
        raise SettingsError(
            f"{name} cannot be sent to the tasks: {error}; make connections, locks and files in open(), "
            "which runs there, instead of in __init__"
        ) from error


def _check_states(name: str, function: KeyedFunction) -> None:
    in_batches = ValueState | ListState | MapState | SubtaskListState
    for state_name, state in declared_states(function).items():
        if isinstance(function, BatchFunction) and not isinstance(state, in_batches):
            raise SettingsError(
                f"state {state_name!r} of {name} is a {state.kind}; a BatchFunction has ValueState, ListState and "
                "MapState, which it reads and writes as arrays, and the lists of its subtask"
            )
        if type(state) is SubtaskListState:
            raise SettingsError(
                f"state {state_name!r} of {name} is a SubtaskListState; declare a UnionListState or a SplitListState"
            )
        _check_declared_once(name, function, state_name, state)
    for attribute, value in vars(function).items():
        if isinstance(value, State):
            raise SettingsError(
                f"{name}.{attribute} is a {value.kind} that was put into the instance; declare states as attributes "
                "of the class, so that they are known before any row"
            )


def _check_declared_once(name: str, function: KeyedFunction, state_name: str, state: State) -> None:
    """A list of the subtask and another state of the same name would have different tables."""
    for cls in type(function).__mro__:
        other = vars(cls).get(state_name)
        are_lists = isinstance(state, SubtaskListState) or isinstance(other, SubtaskListState)
        if are_lists and isinstance(other, State) and other is not state:
            raise SettingsError(
                f"state {state_name!r} of {name} is declared twice, as {state!r} and in {cls.__name__} as {other!r}; "
                "rename either state"
            )


def _check_signature(name: str, method: str, bound: Callable[..., Any], arguments: tuple[str, ...]) -> None:
    try:
        inspect.signature(bound).bind(*arguments)
    except TypeError as error:
        raise SettingsError(
            f"{name}.{method} is called as {method}({', '.join(arguments)}), but: {error}; its signature is "
            f"{method}{inspect.signature(bound)}"
        ) from error
    if inspect.iscoroutinefunction(bound) or inspect.isasyncgenfunction(bound):
        raise SettingsError(f"{name}.{method} is async; it must be an ordinary function or generator")


@dataclass(frozen=True)
class ProcessSpec(OperatorSpec):
    """`KeyedStream.process` as declared. Raises `SettingsError` or `JobRefused` when made.

    Parameters
    ----------
    schema : pyarrow.Schema
        The schema of the output (see `schema.to_arrow_schema` for other forms).
    bad_records : {"fail", "dead_letter"}
        The treatment of a row for which the function raises, or whose output does not fit the schema.
    broadcast
        The inputs that make the function's broadcast states.
    """

    name: str
    input: OperatorInput
    function: ProcessFunction | BatchFunction
    schema: pa.Schema
    bad_records: Literal["fail", "dead_letter"] = "fail"
    broadcast: tuple[OperatorInput, ...] = ()

    takes: ClassVar[tuple[StreamKind, ...]] = ("append", "changes", "upserts")

    def __post_init__(self) -> None:
        check_function(self.function)
        if self.bad_records not in ("fail", "dead_letter"):
            raise SettingsError(f"bad_records is {self.bad_records!r}; allowed are 'fail' and 'dead_letter'")
        if isinstance(self.function, ProcessFunction):
            for field in self.schema:
                self._check_output(field)
        for column in self.input.key_columns:
            if self.input.schema.names.count(column) != 1:
                raise JobRefused(
                    f"operator {self.name!r}: key column {column!r} is missing among its input's columns "
                    f"({', '.join(self.input.schema.names)}), or there are several of that name"
                )
        check_broadcasts(self.name, self.function, self.broadcast)
        for state in (*declared_states(self.function), *declared_broadcasts(self.function)):
            if state in self.key_columns or state.startswith("__"):
                raise JobRefused(
                    f"operator {self.name!r}: state {state!r} has the name of a key column or begins with '__'; "
                    "rename the state"
                )

    def _check_output(self, field: pa.Field) -> None:
        try:
            fit_for(field.type)
        except SettingsError as error:
            raise SettingsError(f"operator {self.name!r}: output column {field.name!r}: {error}") from error

    @property
    def states(self) -> dict[str, State]:
        """States that belong to keys, by name."""
        found = declared_states(self.function)
        return {name: state for name, state in found.items() if not isinstance(state, SubtaskListState)}

    @property
    def lists(self) -> dict[str, SubtaskListState]:
        """The lists of a subtask."""
        found = declared_states(self.function)
        return {name: state for name, state in found.items() if isinstance(state, SubtaskListState)}

    @property
    def tables_read_whole(self) -> tuple[str, ...]:
        return tuple(list_table(name) for name, state in self.lists.items() if isinstance(state, UnionListState))

    @property
    def output_schema(self) -> pa.Schema:
        return self.schema

    @property
    def output_kind(self) -> StreamKind:
        if CHANGE_TYPE not in self.schema.names:
            return "append"
        return "upserts" if self.input.kind == "upserts" else "changes"

    @property
    def inputs(self) -> tuple[OperatorInput, ...]:
        return (self.input, *self.broadcast)

    @property
    def key_schema(self) -> pa.Schema:
        return self.input.key_schema

    @property
    def value_schema(self) -> pa.Schema:
        return pa.schema([field for name, state in self.states.items() for field in state.fields(name)])

    def table_schemas(self) -> dict[str, TableSchema]:
        schemas = {"state": TableSchema(self.key_schema, self.value_schema)}
        schemas.update({broadcast_table(found.broadcast): broadcast_schema(found) for found in self.broadcast})
        for name, state in self.states.items():
            schemas.update(state.tables(name, self.key_schema))
        schemas.update({list_table(name): state.schema() for name, state in self.lists.items()})
        if self.has_timers:
            schemas[TIMERS] = timers_schema(self.key_schema)
        return schemas

    @property
    def tables_everywhere(self) -> frozenset[str]:
        return frozenset(broadcast_table(found.broadcast) for found in self.broadcast)

    @property
    def has_timers(self) -> bool:
        return hasattr(self.function, "on_timer") or hasattr(self.function, "on_timers")

    @property
    def is_timed(self) -> bool:
        return self.has_timers or any(state.expiry is not None for state in self.states.values())

    @property
    def _no_timestamp(self) -> str:
        time = self.input.event_time
        if time is None or time.column is not None:
            return ""
        return (
            f"operator {self.name!r}: ctx.timestamp is the value of the watermark's column ({', '.join(time.names)}), "
            f"which its input no longer has ({', '.join(self.input.schema.names)}): keep that name in the steps before "
            "key_by, or read the row's own column"
        )

    def copy_function(self) -> Any:
        """A subtask's own copy of the function."""
        return cloudpickle.loads(pickled(self.function))

    def create(self, subtask: int, max_parallelism: int, new_table: NewTable = StateTable) -> Operator:
        context = Context(self.name, subtask, no_timestamp=self._no_timestamp)
        if isinstance(self.function, ProcessFunction):
            return ProcessOperator(self, context, max_parallelism, new_table)
        return BatchOperator(self, context, max_parallelism, new_table)
