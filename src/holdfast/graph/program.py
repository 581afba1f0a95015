"""Description of a running job: sources, legs, operators, sinks. Pure data; shipped to executors with cloudpickle.

    level 0: read splits ──leg──► operators of level 1, sinks
    level 1: pull from operators of level 1 ──leg──► operators of level 2, sinks
    …

A *leg* is the work without state on the rows of an origin (a source, or an operator's output): a graph of steps with
one or several targets. The rows are read once for all of them. An operator's level is 1 more than the highest level
among the origins of the legs that feed it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa

from holdfast.functions.operator import OperatorSpec
from holdfast.settings import IN_MEMORY, StateBackend
from holdfast.sinks.base import Sink
from holdfast.sources.base import Source
from holdfast.sources.dataframe import DataFrameSource
from holdfast.sources.wanted import WantedRows
from holdfast.watermarks import WatermarkSpec

BATCH_TIME = pa.timestamp("us", "UTC")
"""The type of a column with the time of the batch."""

DEAD_LETTERS = "dead-letters"
"""Name of the sink for bad rows; no other sink may have it."""


def name_of_function(fn: Callable[..., Any]) -> str:
    """Return a function's name, or its type's if it has none: the same in each process."""
    return str(getattr(fn, "__name__", type(fn).__name__))


@dataclass(frozen=True)
class MapBatches:
    """`fn(RecordBatch) -> RecordBatch | Iterator[RecordBatch]`; the result has `schema`."""

    fn: Callable[[pa.RecordBatch], pa.RecordBatch | Iterator[pa.RecordBatch]]
    schema: pa.Schema
    shown: str = ""
    """Description for messages; empty: `map_batches` with the function's name."""
    keeps_rows: bool = False
    """True if the step gives a row for each row, in order."""
    by_row: bool = False
    """True if the outcome of a row depends on that row alone: a step that fails is tried again with fewer rows."""

    def __str__(self) -> str:
        return self.shown or f"map_batches({name_of_function(self.fn)})"


@dataclass(frozen=True)
class Transform:
    """`fn(DataFrame) -> DataFrame`, run by Spark SQL; `schema` is the result of the analysis at `start()`.

    Tasks get it without `fn`, which is called only on the driver, and may hold DataFrames and the session.
    """

    fn: Callable[[Any], Any]
    schema: pa.Schema

    def __str__(self) -> str:
        return "transform"

    def __reduce__(self) -> tuple[type["Transform"], tuple[Callable[[Any], Any], pa.Schema]]:
        return Transform, (_on_the_driver, self.schema)


def _on_the_driver(_: Any) -> Any:
    raise AssertionError("transforms are called on the driver only")


LegStep = MapBatches | Transform


@dataclass(frozen=True)
class SourceOrigin:
    """The main stream of a source, or another of its outputs by name."""

    source: str
    output: str = ""


LATE = ("late", "late-right")
"""Names of an operator's outputs with the rows of its first and second input that came too late."""


@dataclass(frozen=True)
class OperatorOrigin:
    """The main output of an operator, or another of its outputs by name (those of `LATE`)."""

    operator: str
    output: str = ""

    @property
    def kept_as(self) -> str:
        """Name by which TaskManagers keep the rows; no operator's name has a slash."""
        return f"{self.operator}/{self.output}" if self.output else self.operator


@dataclass(frozen=True)
class OperatorTarget:
    """Target of a leg: `operator`'s input number `input` (of several); rows are divided by `key_columns`."""

    operator: str
    input: int
    key_columns: tuple[str, ...]
    needed: tuple[str, ...] = ()
    """Columns besides the key that may not be null; from them the operator computes further key columns."""
    broadcast: str = ""
    """Name of a broadcast state: all rows go to every subtask. Empty: rows are divided."""
    changes: bool = False
    """True if the change type of each row has to be a known one."""

    @property
    def not_null(self) -> tuple[str, ...]:
        """Columns whose nulls make a row bad."""
        return (*(column for column in self.key_columns if not column.startswith("__")), *self.needed)


@dataclass(frozen=True)
class SinkTarget:
    sink: str


@dataclass(frozen=True)
class LegNode:
    """Rows within a leg: behind a step, or (without a step) of several inputs, one after the other.

    `inputs`: numbers of earlier nodes of the leg; the first node has none, since it holds the origin's rows.
    """

    inputs: tuple[int, ...]
    step: LegStep | None
    schema: pa.Schema


@dataclass(frozen=True)
class LegOutput:
    """A target of a leg, and the node whose rows it gets.

    `number`: its place among all outputs of the program; an operator gets its inputs in this order.
    """

    number: int
    node: int
    target: OperatorTarget | SinkTarget
    schema: pa.Schema


@dataclass(frozen=True)
class Leg:
    """Rows of an origin on their way to their targets. `level` is the origin's level (0 for sources)."""

    index: int
    level: int
    origin: SourceOrigin | OperatorOrigin
    nodes: tuple[LegNode, ...]
    outputs: tuple[LegOutput, ...]
    watermark: WatermarkSpec | None = None
    """Watermark of the source's rows, before any step."""
    columns: tuple[str, ...] | None = None
    """Columns of the source that are read; None: all of them."""
    wanted: WantedRows | None = None
    """The rows of the source that any target gets something of; None: all of them."""

    @property
    def in_python(self) -> bool:
        """True if no step of this leg takes the rows into the JVM."""
        return not any(isinstance(node.step, Transform) for node in self.nodes)

    @property
    def steps(self) -> tuple[LegStep, ...]:
        """All steps. A leg that Spark runs has a single way, and these are its steps in order."""
        return tuple(node.step for node in self.nodes if node.step is not None)

    @property
    def sink_places(self) -> dict[int, str]:
        """The places of the outputs that are sinks, with their names."""
        return {
            place: output.target.sink
            for place, output in enumerate(self.outputs)
            if isinstance(output.target, SinkTarget)
        }

    def steps_before(self, number: int) -> tuple[str, ...]:
        """Describe the steps on all ways to a node, in the order in which rows pass them."""
        found, waiting = set(), [number]
        while waiting:
            node = waiting.pop()
            if node not in found:
                found.add(node)
                waiting.extend(self.nodes[node].inputs)
        return tuple(str(step) for each in sorted(found) if (step := self.nodes[each].step) is not None)

    def keeps_rows(self, number: int) -> bool:
        """True if a node has a row for each row of the origin, in order."""
        node = self.nodes[number]
        while node.inputs:
            if len(node.inputs) > 1 or not (isinstance(node.step, MapBatches) and node.step.keeps_rows):
                return False
            node = self.nodes[node.inputs[0]]
        return True


@dataclass(frozen=True)
class DeclaredPart:
    """A source, operator or sink. `unnamed`: its name was made of its kind and a number.

    `inputs` are the names of the sources and operators that it reads; `details` distinguishes it from others of its
    kind.
    """

    role: str
    kind: str
    unnamed: bool
    keys: tuple[str, ...]
    inputs: tuple[str, ...]
    details: str
    settings: str = ""
    """An operator's settings. They may change between starts, and distinguish operators whose details are equal."""


@dataclass(frozen=True)
class SinkWatermark:
    """The watermarks for the rows of a sink, by their keys, and the delay of the rows behind these watermarks."""

    keys: tuple[str, ...]
    delay_us: int


@dataclass(frozen=True)
class Program:
    """Everything of a job that tasks need. `sources` and `sinks` are by name."""

    sources: dict[str, Source]
    legs: tuple[Leg, ...]
    operators: dict[str, OperatorSpec]
    operator_levels: dict[str, int]
    sinks: dict[str, Sink]
    sink_schemas: dict[str, pa.Schema]
    sink_keys: dict[str, tuple[str, ...]]
    dead_letters: Sink | None = None
    watermarks: dict[str, WatermarkSpec] = field(default_factory=dict)
    """Watermarks by their keys."""
    operator_watermarks: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Keys of the watermarks of all inputs, by operator; only operators with a watermark."""
    operator_delays: dict[str, int] = field(default_factory=dict)
    """Microseconds by which an operator's watermark is behind its sources' watermarks."""
    sink_watermarks: dict[str, SinkWatermark] = field(default_factory=dict)
    """Watermarks of sinks by name, for sinks all of whose inputs have a watermark."""
    state: StateBackend = IN_MEMORY
    parts: dict[str, DeclaredPart] = field(default_factory=dict)
    """All sources, operators and sinks as declared, by name."""

    @property
    def all_sinks(self) -> dict[str, Sink]:
        """All sinks by name, with the sink of the dead letters."""
        return self.sinks if self.dead_letters is None else {**self.sinks, DEAD_LETTERS: self.dead_letters}

    @cached_property
    def source_legs(self) -> tuple[Leg, ...]:
        """The legs that read sources."""
        return tuple(leg for leg in self.legs if isinstance(leg.origin, SourceOrigin))

    @cached_property
    def legs_by_operator(self) -> dict[str, tuple[Leg, ...]]:
        """The legs that begin at each operator's outputs."""
        found: dict[str, list[Leg]] = {}
        for leg in self.legs:
            if isinstance(leg.origin, OperatorOrigin):
                found.setdefault(leg.origin.operator, []).append(leg)
        return {operator: tuple(legs) for operator, legs in found.items()}

    @cached_property
    def first_legs(self) -> frozenset[int]:
        """The first leg of each origin. Only its counts are used, so that the origin's rows are counted once."""
        return frozenset({leg.origin: leg.index for leg in reversed(self.legs)}.values())

    @cached_property
    def python_legs(self) -> frozenset[int]:
        """The legs whose rows never enter the JVM."""
        return frozenset(leg.index for leg in self.legs if self.runs_in_python(leg))

    @cached_property
    def operators_of_level(self) -> dict[int, tuple[str, ...]]:
        """The names of the operators of each level."""
        found: dict[int, list[str]] = {}
        for operator, level in self.operator_levels.items():
            found.setdefault(level, []).append(operator)
        return {level: tuple(operators) for level, operators in found.items()}

    @cached_property
    def operators_fed_by(self) -> dict[int, tuple[str, ...]]:
        """The names of the operators that legs of each level lead to."""
        found: dict[int, dict[str, None]] = {leg.level: {} for leg in self.legs}
        for leg in self.legs:
            targets = (each.target for each in leg.outputs)
            found[leg.level].update((each.operator, None) for each in targets if isinstance(each, OperatorTarget))
        return {level: tuple(operators) for level, operators in found.items()}

    def runs_in_python(self, leg: Leg) -> bool:
        """True if a leg's rows never enter the JVM: the leg has no Spark step, and Spark does not read its source."""
        origin = leg.origin
        by_spark = isinstance(origin, SourceOrigin) and isinstance(self.sources[origin.source], DataFrameSource)
        return leg.in_python and not by_spark

    def output_schema(self, kept_as: str) -> pa.Schema | None:
        """The schema of an output, by the name under which it is kept; None if the output does not exist."""
        operator, _, output = kept_as.partition("/")
        spec = self.operators.get(operator)
        if spec is None:
            return None
        return spec.late_schemas.get(LATE.index(output)) if output else spec.output_schema

    def key_groups(self, operator: str, table: str, own: tuple[int, int], max_parallelism: int) -> tuple[int, int]:
        """The key groups `[start, stop)` of a table in a subtask that owns `own`: these, or all of them."""
        return (0, max_parallelism) if table in self.operators[operator].tables_everywhere else own

    @property
    def levels(self) -> int:
        """Number of operator levels; 0 for a job without state."""
        return max(self.operator_levels.values(), default=0)
