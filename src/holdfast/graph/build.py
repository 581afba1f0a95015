"""Builder of a `Program` from a user's declarations: names, schemas, legs, levels. Pure; refuses jobs that cannot run.

Declarations form a DAG by construction: a stream only exists after its origin.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import JobRefused, SettingsError
from holdfast.functions.operator import EventTime, OperatorInput, OperatorSpec
from holdfast.functions.windows.declared import PANE, WINDOW_END, WINDOW_START, AnyWindow
from holdfast.graph.declared_parts import declared_parts
from holdfast.graph.program import (
    BATCH_TIME,
    DEAD_LETTERS,
    LATE,
    Leg,
    LegStep,
    MapBatches,
    OperatorOrigin,
    OperatorTarget,
    Program,
    SinkTarget,
    SinkWatermark,
    SourceOrigin,
    Transform,
    name_of_function,
)
from holdfast.graph.projecting import Omission, Projection, Selection, columns_read
from holdfast.graph.uniting import conform, united_schema
from holdfast.schema import CHANGE_TYPE
from holdfast.settings import IN_MEMORY, StateBackend
from holdfast.sinks.base import Sink
from holdfast.sources.base import Source
from holdfast.sources.dataframe import DataFrameSource
from holdfast.watermarks import WatermarkSpec


@dataclass(frozen=True)
class TransformDeclaration:
    fn: Callable[[Any], Any]

    def __str__(self) -> str:
        return f"transform({name_of_function(self.fn)})"


@dataclass(frozen=True)
class UnionDeclaration:
    """Step that gives a stream the columns of all `members`, by name; `value` is the value of its rows in the column
    `tag`."""

    members: "tuple[Path, ...]"
    tag: str | None
    value: str

    def __str__(self) -> str:
        return "union_by_name"


StepDeclaration = MapBatches | TransformDeclaration | UnionDeclaration | Projection | Selection | Omission


@dataclass(frozen=True)
class Path:
    """A path into a stream: an origin's name and the steps since."""

    origin: SourceOrigin | OperatorOrigin
    steps: tuple[StepDeclaration, ...] = ()
    watermark: WatermarkSpec | None = None


@dataclass(frozen=True)
class InputDeclaration:
    """A keyed stream as an operator's input: its paths, which are united, its key columns and perhaps a window.

    `window_place`: number of key columns before the window.
    """

    paths: tuple[Path, ...]
    key_columns: tuple[str, ...]
    window: AnyWindow | None = None
    window_place: int = 0
    timed: bool = False
    """True if each row needs an event time."""
    plain: bool = False
    """True if `window_start` among the keys is a column like any other, and not the previous window."""
    reads: tuple[str, ...] | None = None
    """The columns that the operator reads besides its keys, so that others need not reach it; None: all of them."""
    computed: dict[str, pc.Expression] = field(default_factory=dict)
    """Columns that are made of others on their way to the operator."""
    broadcast: str = ""
    """Name of the broadcast state that the rows make in every subtask; empty: rows are divided by key."""

    @property
    def shown_keys(self) -> tuple[str, ...]:
        """The keys as they were declared."""
        keys = tuple(map(repr, self.key_columns))
        window = () if self.window is None else (str(self.window),)
        return (*keys[: self.window_place], *window, *keys[self.window_place :])

    def as_broadcast(self, name: str) -> "InputDeclaration":
        """Make the same input go to every subtask. Raises `SettingsError`."""
        if self.window is not None:
            raise SettingsError(
                f"process(broadcast={{{name!r}: …}}) is keyed by {self.window}; key it by columns alone"
            )
        return replace(self, broadcast=name, plain=True)


@dataclass(frozen=True)
class OperatorDeclaration:
    """An operator whose `specify` makes its spec from its name and its inputs, in the order of `inputs`."""

    name: str
    inputs: tuple[InputDeclaration, ...]
    specify: Callable[[str, tuple[OperatorInput, ...]], OperatorSpec]

    @property
    def paths(self) -> tuple[Path, ...]:
        """The paths into all inputs."""
        return tuple(path for each in self.inputs for path in each.paths)

    @property
    def keyed_paths(self) -> tuple[Path, ...]:
        """The paths into the inputs whose rows are divided by key: event time follows these."""
        return tuple(path for each in self.inputs if not each.broadcast for path in each.paths)


@dataclass(frozen=True)
class SinkDeclaration:
    name: str
    sink: Sink
    paths: tuple[Path, ...]


@dataclass
class Declarations:
    """Everything declared so far, in order, by name."""

    sources: dict[str, Source] = field(default_factory=dict)
    operators: dict[str, OperatorDeclaration] = field(default_factory=dict)
    sinks: dict[str, SinkDeclaration] = field(default_factory=dict)
    unnamed: dict[str, str] = field(default_factory=dict)
    """Kinds of those that the user gave no name, by the names that they have instead."""

    def name_for(self, given: str | None, kind: str) -> str:
        """Return the given name, or kind plus declaration order; refuse a name that is taken or cannot be part of a
        path."""
        taken = {*self.sources, *self.operators, *self.sinks}
        if given is None:
            number = 1
            while f"{kind}-{number}" in taken:
                number += 1
            self.unnamed[f"{kind}-{number}"] = kind
            return f"{kind}-{number}"
        if not given or not all(c.isalnum() or c in "-_." for c in given) or given.startswith("."):
            raise JobRefused(
                f"name {given!r}: letters, digits, '-', '_' and '.' are allowed, and it may not begin with '.'"
            )
        if given == DEAD_LETTERS:
            raise JobRefused(f"name {given!r} is that of the dead letters' own sink; choose another")
        if given in taken:
            raise JobRefused(f"name {given!r} is used twice in this job; give each source, operator and sink its own")
        return given


AnalyseTransform = Callable[[Callable[[Any], Any], pa.Schema], pa.Schema]


def without_spark(fn: Callable[[Any], Any], schema: pa.Schema) -> pa.Schema:
    raise JobRefused(f"transform({name_of_function(fn)}) needs Spark; without it use map_batches, or test on a session")


def build_program(
    declared: Declarations,
    analyse: AnalyseTransform,
    dead_letters: Sink | None,
    state: StateBackend = IN_MEMORY,
) -> Program:
    """Resolve every schema and lay the legs. Raises `JobRefused`."""
    if not declared.sinks:
        raise JobRefused("the job writes nothing: give at least one stream a sink with .write(...)")
    program = _Builder(declared, analyse).build(dead_letters)
    return replace(program, state=state, parts=declared_parts(declared, program.operators))


class _Builder:
    def __init__(self, declared: Declarations, analyse: AnalyseTransform) -> None:
        self._declared = declared
        self._analyse = analyse
        self._schemas: dict[SourceOrigin | OperatorOrigin, pa.Schema] = {}
        self._levels: dict[str, int] = {}
        self._legs: list[Leg] = []
        self._watermarks: dict[str, WatermarkSpec] = {}
        self._operator_watermarks: dict[str, tuple[str, ...]] = {}
        self._specs: dict[str, OperatorSpec] = {}
        self._delays: dict[str, int] = {}
        self._sink_watermarks: dict[str, SinkWatermark] = {}

    def build(self, dead_letters: Sink | None) -> Program:
        for name, source in self._declared.sources.items():
            outputs = source.outputs() or {"": source.schema()}
            self._schemas |= {SourceOrigin(name, output): schema for output, schema in outputs.items()}
        operators = {name: self._add_operator(declared) for name, declared in self._declared.operators.items()}
        sink_schemas = {name: self._add_sink(declared) for name, declared in self._declared.sinks.items()}
        self._refuse_unread_operators()
        return Program(
            sources=dict(self._declared.sources),
            legs=tuple(self._legs),
            operators=operators,
            operator_levels=self._levels,
            sinks={name: declared.sink for name, declared in self._declared.sinks.items()},
            sink_schemas=sink_schemas,
            sink_keys={name: self._sink_keys(declared) for name, declared in self._declared.sinks.items()},
            dead_letters=dead_letters,
            watermarks=self._watermarks,
            operator_watermarks=self._operator_watermarks,
            operator_delays=self._delays,
            sink_watermarks=self._sink_watermarks,
        )

    def _add_operator(self, declared: OperatorDeclaration) -> OperatorSpec:
        level = 1 + max(self._origin_level(path) for path in declared.paths)
        self._levels[declared.name] = level
        self._note_watermarks(declared)
        inputs = [self._operator_input(declared.name, number, each) for number, each in enumerate(declared.inputs)]
        spec = declared.specify(declared.name, tuple(inputs))
        self._schemas[OperatorOrigin(declared.name)] = spec.output_schema
        for number, schema in spec.late_schemas.items():
            self._schemas[OperatorOrigin(declared.name, LATE[number])] = schema
        self._specs[declared.name] = spec
        return spec

    def _operator_input(self, operator: str, number: int, declared: InputDeclaration) -> OperatorInput:
        declared = self._with_given_window(self._behind_windows(operator, declared))
        window = declared.window
        divided_by = declared.key_columns or (PANE,)
        needed = () if window is None else (window.column,)
        for path in declared.paths:
            self._check_columns(operator, declared, self._resolve(path)[1])
        paths = [self._narrowed(path, declared, needed) for path in declared.paths]
        schema = self._add_legs(
            operator, paths, OperatorTarget(operator, number, divided_by, needed, declared.broadcast)
        )
        event_time = self._event_time(declared.paths, schema)
        if declared.timed and event_time is not None and event_time.column is not None:
            self._need(len(declared.paths), event_time.column)
        return OperatorInput(
            schema, declared.key_columns, event_time, window, declared.window_place, declared.broadcast
        )

    def _check_columns(self, operator: str, declared: InputDeclaration, schema: pa.Schema) -> None:
        for column in declared.key_columns:
            if column not in schema.names:
                raise JobRefused(
                    f"operator {operator!r}: key column {column!r} is not among the columns of its input: "
                    f"{', '.join(schema.names)}"
                )
        if CHANGE_TYPE in schema.names and not declared.broadcast:
            raise JobRefused(
                f"operator {operator!r}: its input has the column {CHANGE_TYPE!r} of change data, which cannot be "
                "aggregated without retraction; drop the column, or keep only inserts, before key_by"
            )

    def _narrowed(self, path: Path, declared: InputDeclaration, needed: tuple[str, ...]) -> Path:
        """Add the step that leaves the columns which the operator reads, and makes those that are computed for it."""
        schema = self._resolve(path)[1]
        wanted = (*declared.key_columns, *needed, *(declared.reads or ()))
        if declared.reads is None or not set(wanted) <= set(schema.names):
            if not declared.computed:
                return path
            return replace(path, steps=(*path.steps, Projection(dict(declared.computed), added=True)))
        times = self._event_times([path])
        columns: dict[str, pc.Expression | None] = {
            name: None for name in schema.names if name in wanted or name in times
        }
        return replace(path, steps=(*path.steps, Projection({**columns, **declared.computed})))

    def _need(self, legs: int, column: str) -> None:
        """Rows with a null in that column are bad records on the last so many legs."""
        for place in range(len(self._legs) - legs, len(self._legs)):
            leg = self._legs[place]
            assert isinstance(leg.target, OperatorTarget)
            self._legs[place] = replace(leg, target=replace(leg.target, needed=(*leg.target.needed, column)))

    def _behind_windows(self, operator: str, declared: InputDeclaration) -> InputDeclaration:
        """Extend the time that the input's window stays open if its times are starts of other windows."""
        if declared.window is None or declared.window.column != WINDOW_START:
            return declared
        before = [path.origin for path in declared.paths if isinstance(path.origin, OperatorOrigin)]
        behind = [self._specs[origin.operator].start_behind_us for origin in before]
        known = [behind_us for behind_us in behind if behind_us is not None]
        if len(known) < len(behind):
            raise JobRefused(
                f"operator {operator!r}: {declared.window} takes the starts of sessions, which may be long ago when "
                "they close, so that rows would come late; take their ends, window_end"
            )
        return replace(declared, window=replace(declared.window, behind_us=max(known, default=0)))

    def _with_given_window(self, declared: InputDeclaration) -> InputDeclaration:
        """Key the input by the window of the operators before it if `window_start` is among its keys."""
        if declared.window is not None or declared.plain or WINDOW_START not in declared.key_columns:
            return declared
        windows = {
            self._specs[path.origin.operator].output_window
            if isinstance(path.origin, OperatorOrigin) and not path.origin.output
            else None
            for path in declared.paths
        }
        window = windows.pop()
        if windows or window is None:
            return declared
        names = tuple(name for name in declared.key_columns if name in (WINDOW_START, WINDOW_END))
        columns = tuple(name for name in declared.key_columns if name not in names)
        place = declared.key_columns.index(names[0])
        given = replace(window, names=names)
        return replace(declared, key_columns=columns, window=given, window_place=place)

    def _add_sink(self, declared: SinkDeclaration) -> pa.Schema:
        inputs = [self._path_watermarks(path) for path in declared.paths]
        if all(inputs):
            keys = tuple(dict.fromkeys(key for found in inputs for key in found))
            self._sink_watermarks[declared.name] = SinkWatermark(keys, self._delay_of(declared.paths))
        return self._add_legs(declared.name, declared.paths, SinkTarget(declared.name))

    def _add_legs(self, name: str, paths: Sequence[Path], target: OperatorTarget | SinkTarget) -> pa.Schema:
        first: pa.Schema | None = None
        for path in paths:
            columns = self._columns_read(path)
            steps, schema = self._resolve(path, columns)
            if first is None:
                first = schema
            elif not first.equals(schema):
                raise JobRefused(f"{name!r} unites streams of different schemas: {_line(first)} and {_line(schema)}")
            level = self._origin_level(path)
            self._legs.append(Leg(len(self._legs), level, path.origin, steps, target, schema, path.watermark, columns))
        assert first is not None
        return first

    def _columns_read(self, path: Path) -> tuple[str, ...] | None:
        """The columns of the path's source that are read; None: all of them, or there is none."""
        if not isinstance(path.origin, SourceOrigin):
            return None
        by_spark = isinstance(self._declared.sources[path.origin.source], DataFrameSource)
        if by_spark or any(isinstance(step, TransformDeclaration) for step in path.steps):
            return None
        always = () if path.watermark is None else (path.watermark.column,)
        found = columns_read(self._origin_schema(path), path.steps, always)
        return found and tuple(name for name in found if name in self._schemas[path.origin].names)

    def _origin_schema(self, path: Path) -> pa.Schema:
        """The schema of the path's origin, with the time of the batch where the path has it."""
        schema = self._schemas[path.origin]
        if path.watermark is None or not path.watermark.of_batches:
            return schema
        if path.watermark.column in schema.names:
            raise JobRefused(
                f"with_batch_time({path.watermark.column!r}) on source {path.watermark.source!r}: it has a column of "
                "that name; choose another"
            )
        return schema.append(pa.field(path.watermark.column, BATCH_TIME))

    def _note_watermarks(self, declared: OperatorDeclaration) -> None:
        """Note the watermarks over the operator's inputs; a broadcast input does not hold event time back."""
        inputs = [self._path_watermarks(path) for path in declared.keyed_paths]
        if any(inputs) and not all(inputs):
            raise JobRefused(
                f"operator {declared.name!r} unites streams with and without a watermark, and so could never know how "
                "far event time has come; give all of its sources with_watermark(...), or none"
            )
        keys = tuple(dict.fromkeys(key for found in inputs for key in found))
        if keys:
            self._operator_watermarks[declared.name] = keys
        self._delays[declared.name] = self._delay_of(declared.keyed_paths)

    def _delay_of(self, paths: Sequence[Path]) -> int:
        """Microseconds by which rows are behind the watermarks of their sources: windows stay open for so long."""
        before = {path.origin.operator for path in paths if isinstance(path.origin, OperatorOrigin)}
        return max((self._delays[operator] + self._specs[operator].output_delay_us for operator in before), default=0)

    def _event_time(self, paths: Sequence[Path], schema: pa.Schema) -> EventTime | None:
        """The event time of an input, from the watermarks of its sources."""
        names, specs = self._event_times(paths), self._watermarks_of(paths)
        if not specs:
            return None
        zoned = any(
            spec.of_batches or self._schemas[SourceOrigin(spec.source, spec.output)].field(spec.column).type.tz
            for spec in specs
        )
        place = schema.get_field_index(names[0]) if len(names) == 1 else -1
        there = place >= 0 and pa.types.is_timestamp(schema.field(place).type)
        return EventTime(names, names[0] if there else None, zoned)

    def _watermarks_of(self, paths: Sequence[Path]) -> list[WatermarkSpec]:
        return [self._watermarks[key] for path in paths for key in self._path_watermarks(path)]

    def _event_times(self, paths: Sequence[Path]) -> tuple[str, ...]:
        """The sources' columns that hold the event time of these paths."""
        return tuple(dict.fromkeys(spec.column for spec in self._watermarks_of(paths)))

    def _path_watermarks(self, path: Path) -> tuple[str, ...]:
        if isinstance(path.origin, OperatorOrigin):
            return self._operator_watermarks.get(path.origin.operator, ())
        watermark = path.watermark
        if watermark is None:
            return ()
        schema = self._origin_schema(path)
        if watermark.column not in schema.names or not pa.types.is_timestamp(schema.field(watermark.column).type):
            raise JobRefused(
                f"with_watermark({watermark.column!r}) on source {watermark.source!r}: expected a timestamp column "
                f"of the source; its columns are {_line(schema)}"
            )
        if self._watermarks.setdefault(watermark.key, watermark) != watermark:
            raise JobRefused(
                f"source {watermark.source!r}: with_watermark({watermark.column!r}) is declared twice with different "
                "delay or idle_timeout; declare it once, right after read(), and branch from that stream"
            )
        return (watermark.key,)

    def _resolve(self, path: Path, columns: tuple[str, ...] | None = None) -> tuple[tuple[LegStep, ...], pa.Schema]:
        """The steps of a path and the schema behind them; `columns`: those of its source that are read."""
        if path.origin not in self._schemas:
            raise JobRefused(
                f"operator {path.origin.kept_as!r}: its late rows are no stream; declare it with late='stream'"
                if isinstance(path.origin, OperatorOrigin)
                else f"source {path.origin.source!r} is not in this job"
            )
        schema = self._origin_schema(path)
        if columns is not None:
            batch_time = schema.names[len(self._schemas[path.origin]) :]
            schema = pa.schema([schema.field(name) for name in (*columns, *batch_time)])
        steps: list[LegStep] = []
        for step in path.steps:
            if isinstance(step, MapBatches):
                steps.append(step)
                schema = step.schema
            elif isinstance(step, Projection | Selection | Omission):
                schema = step.schema_of(schema)
                steps.append(MapBatches(step, schema, str(step), keeps_rows=not isinstance(step, Selection)))
            elif isinstance(step, UnionDeclaration):
                schema = united_schema([self._resolve(member)[1] for member in step.members], step.tag)
                steps.append(MapBatches(partial(conform, schema, step.tag, step.value), schema))
            else:
                schema = self._analyse(step.fn, schema)
                steps.append(Transform(step.fn, schema))
        return tuple(steps), schema

    def _origin_level(self, path: Path) -> int:
        return self._levels[path.origin.operator] if isinstance(path.origin, OperatorOrigin) else 0

    def _sink_keys(self, declared: SinkDeclaration) -> tuple[str, ...]:
        """Key columns of the last operator before the sink; empty if paths disagree."""
        keys = {
            self._specs[path.origin.operator].key_columns if isinstance(path.origin, OperatorOrigin) else ()
            for path in declared.paths
        }
        return keys.pop() if len(keys) == 1 else ()

    def _refuse_unread_operators(self) -> None:
        read = {leg.origin for leg in self._legs}
        for origin in self._schemas:
            if origin in read:
                continue
            kind, name = ("source", origin.source) if isinstance(origin, SourceOrigin) else ("operator", origin.kept_as)
            raise JobRefused(f"the output of {kind} {name!r} is used nowhere; write it to a sink (NoopSink discards)")


def _line(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
