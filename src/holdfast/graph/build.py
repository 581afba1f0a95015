"""Builder of a `Program` from a user's declarations: names, schemas, legs, levels. Pure; refuses jobs that cannot run.

Declarations form a DAG by construction: a stream only exists after its origin.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from holdfast.arrays import plain_schema
from holdfast.errors import JobRefused
from holdfast.functions.operator import EventTime, OperatorInput, OperatorSpec
from holdfast.functions.windows.declared import ALL, PANE, WINDOW_END, WINDOW_START, Window
from holdfast.graph.declarations import Declarations, InputDeclaration, OperatorDeclaration, SinkDeclaration
from holdfast.graph.declared_parts import declared_parts
from holdfast.graph.legs import Output, lay_legs
from holdfast.graph.nodes import ReadNode, reads_of
from holdfast.graph.program import (
    BATCH_TIME,
    LATE,
    Leg,
    OperatorOrigin,
    OperatorTarget,
    Program,
    SinkTarget,
    SinkWatermark,
    SourceOrigin,
    name_of_function,
)
from holdfast.graph.projecting import Projection
from holdfast.graph.resolving import AnalyseTransform, Resolved, Resolver, together
from holdfast.schema import CHANGE_TYPE, StreamKind
from holdfast.settings import IN_MEMORY, StateBackend
from holdfast.sinks.base import Sink
from holdfast.sources.dataframe import DataFrameSource
from holdfast.watermarks import WatermarkSpec


def without_spark(fn: Callable[[Any], Any], schema: pa.Schema) -> pa.Schema:
    raise JobRefused(f"transform({name_of_function(fn)}) needs Spark; without it use map_batches, or test on a session")


def build_program(
    declared: Declarations,
    analyse: AnalyseTransform,
    dead_letters: Sink | None,
    state: StateBackend = IN_MEMORY,
) -> Program:
    """Resolve every schema and make the legs. Raises `JobRefused`."""
    if not declared.sinks:
        raise JobRefused("the job writes nothing: give at least one stream a sink with .write(...)")
    program = Builder(declared, analyse).build(dead_letters)
    return replace(program, state=state, parts=declared_parts(declared, program.operators))


class Builder:
    """Makes a program part by part. `schemas` has the schemas of the origins so far."""

    def __init__(self, declared: Declarations, analyse: AnalyseTransform) -> None:
        self._declared = declared
        self._analyse = analyse
        self.resolver = Resolver(analyse, self._schema_read, lambda read: self.kinds[read.origin])
        self.schemas: dict[SourceOrigin | OperatorOrigin, pa.Schema] = {}
        self.kinds: dict[SourceOrigin | OperatorOrigin, StreamKind] = {}
        self._levels: dict[str, int] = {}
        self._outputs: list[Output] = []
        self._watermarks: dict[str, WatermarkSpec] = {}
        self._operator_watermarks: dict[str, tuple[str, ...]] = {}
        self._specs: dict[str, OperatorSpec] = {}
        self._delays: dict[str, int] = {}
        self._sink_watermarks: dict[str, SinkWatermark] = {}

    def build(self, dead_letters: Sink | None) -> Program:
        for name, source in self._declared.sources.items():
            outputs = source.outputs() or {"": source.schema()}
            outputs = {output: plain_schema(schema) for output, schema in outputs.items()}
            self.schemas |= {SourceOrigin(name, output): schema for output, schema in outputs.items()}
            self.kinds.update({SourceOrigin(name, each): source.stream_kind(found) for each, found in outputs.items()})
        operators = {name: self.add_operator(declared) for name, declared in self._declared.operators.items()}
        sink_schemas = {name: self._add_sink(declared) for name, declared in self._declared.sinks.items()}
        by_spark = {SourceOrigin(name) for name, s in self._declared.sources.items() if isinstance(s, DataFrameSource)}
        legs = lay_legs(self._outputs, self._levels, by_spark)
        self._refuse_unread_operators(legs)
        return Program(
            sources=dict(self._declared.sources),
            legs=legs,
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

    def add_operator(self, declared: OperatorDeclaration) -> OperatorSpec:
        """Resolve an operator whose inputs are resolved. Raises `JobRefused`."""
        level = 1 + max(self._level_of(read) for read in declared.reads)
        self._levels[declared.name] = level
        self._note_watermarks(declared)
        inputs = [self._operator_input(declared.name, number, each) for number, each in enumerate(declared.inputs)]
        spec = declared.specify(declared.name, tuple(inputs))
        self._check_kinds(spec, inputs)
        self.schemas[OperatorOrigin(declared.name)] = spec.output_schema
        self.kinds[OperatorOrigin(declared.name)] = spec.output_kind
        for number, schema in spec.late_schemas.items():
            self.schemas[OperatorOrigin(declared.name, LATE[number])] = schema
            self.kinds[OperatorOrigin(declared.name, LATE[number])] = inputs[number].kind
        self._specs[declared.name] = spec
        return spec

    def _operator_input(self, operator: str, number: int, declared: InputDeclaration) -> OperatorInput:
        reads = reads_of(declared.node)
        declared = self._with_given_window(self._behind_windows(operator, declared, reads), reads)
        window = declared.window
        overlaps = isinstance(window, Window) and not window.tumbles
        divided_by = declared.key_columns or ((ALL,) if overlaps else (PANE,))
        needed = () if window is None else (window.column,)
        found = self.resolver.resolve(declared.node)
        for each in found:
            self._check_columns(operator, declared, each.schema)
        times = self._event_times(reads)
        rows = _of_one_schema(operator, [self._narrowed(each, declared, needed, times) for each in found])
        event_time = self._event_time(reads, rows.schema)
        not_null = needed
        if declared.timed and event_time is not None and event_time.column is not None:
            not_null = (*needed, event_time.column)
        changes = rows.kind != "append" or bool(declared.broadcast)
        target = OperatorTarget(operator, number, divided_by, not_null, declared.broadcast, changes)
        self._outputs.append(Output(target, rows))
        return OperatorInput(
            rows.schema, declared.key_columns, event_time, window, declared.window_place, declared.broadcast, rows.kind
        )

    def _check_kinds(self, spec: OperatorSpec, inputs: Sequence[OperatorInput]) -> None:
        """Refuse a stream of changes if the operator would count its rows for ever and ignore their change types."""
        for each in inputs:
            if each.kind in spec.takes or each.broadcast or CHANGE_TYPE not in each.schema.names:
                continue
            if each.kind == "upserts" and "changes" in spec.takes:
                raise JobRefused(
                    f"operator {spec.name!r}: its input is a stream of upserts, which do not contain the row before "
                    "an update, so it cannot be taken back; give the operator before it changes=True, or the source "
                    'before="full"'
                )
            raise JobRefused(
                f"operator {spec.name!r}: its input has the column {CHANGE_TYPE!r} of a stream of {each.kind}, and "
                "this operator cannot take rows back; aggregate the changes without it, or put .as_append() before "
                "key_by, so that each change counts as a row like any other"
            )

    def _check_columns(self, operator: str, declared: InputDeclaration, schema: pa.Schema) -> None:
        for column in declared.key_columns:
            if column not in schema.names:
                raise JobRefused(
                    f"operator {operator!r}: key column {column!r} is not among the columns of its input: "
                    f"{', '.join(schema.names)}"
                )

    def _narrowed(
        self, rows: Resolved, declared: InputDeclaration, needed: tuple[str, ...], times: tuple[str, ...]
    ) -> Resolved:
        """Add the step that keeps the columns that the operator reads, and computes the columns that are made for
        it."""
        names = rows.schema.names
        wanted = (*declared.key_columns, *needed, *(declared.reads or ()), *_change_type(rows))
        if declared.reads is None or not set(wanted) <= set(names):
            if not declared.computed:
                return rows
            return rows.then(Projection(dict(declared.computed), added=True), self._analyse)
        kept: dict[str, Any] = {name: None for name in names if name in wanted or name in times}
        return rows.then(Projection({**kept, **declared.computed}), self._analyse)

    def _behind_windows(self, operator: str, declared: InputDeclaration, reads: Sequence[ReadNode]) -> InputDeclaration:
        """Let the input's window stay open for longer if its times are starts of other windows."""
        if declared.window is None or declared.window.column != WINDOW_START:
            return declared
        before = [read.origin for read in reads if isinstance(read.origin, OperatorOrigin)]
        behind = [self._specs[origin.operator].start_behind_us for origin in before]
        known = [behind_us for behind_us in behind if behind_us is not None]
        if len(known) < len(behind):
            raise JobRefused(
                f"operator {operator!r}: {declared.window} takes the starts of sessions, which may be long ago when "
                "they close, so that rows would come late; take their ends, window_end"
            )
        return replace(declared, window=replace(declared.window, behind_us=max(known, default=0)))

    def _with_given_window(self, declared: InputDeclaration, reads: Sequence[ReadNode]) -> InputDeclaration:
        """Key the input by the window of the operators before it if `window_start` is among its keys."""
        if declared.window is not None or declared.plain or WINDOW_START not in declared.key_columns:
            return declared
        windows = {
            self._specs[read.origin.operator].output_window
            if isinstance(read.origin, OperatorOrigin) and not read.origin.output
            else None
            for read in reads
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
        reads = reads_of(declared.node)
        inputs = [self._watermarks_read(read) for read in reads]
        if all(inputs):
            keys = tuple(dict.fromkeys(key for found in inputs for key in found))
            self._sink_watermarks[declared.name] = SinkWatermark(keys, self._delay_of(reads))
        rows = _of_one_schema(declared.name, self.resolver.resolve(declared.node))
        self._outputs.append(Output(SinkTarget(declared.name), rows))
        return rows.schema

    def _schema_read(self, read: ReadNode) -> pa.Schema:
        """The schema of a read's rows, including the column with the time of the batch, if there is one."""
        if read.origin not in self.schemas:
            raise JobRefused(
                f"operator {read.origin.kept_as!r}: its late rows are no stream; declare it with late='stream'"
                if isinstance(read.origin, OperatorOrigin)
                else f"source {read.origin.source!r} is not in this job"
            )
        schema = self.schemas[read.origin]
        if read.watermark is None or not read.watermark.of_batches:
            return schema
        if read.watermark.column in schema.names:
            raise JobRefused(
                f"with_batch_time({read.watermark.column!r}) on source {read.watermark.source!r}: it has a column of "
                "that name; choose another"
            )
        return schema.append(pa.field(read.watermark.column, BATCH_TIME))

    def _note_watermarks(self, declared: OperatorDeclaration) -> None:
        """Note the watermarks over the operator's inputs; a broadcast input does not hold event time back."""
        reads = declared.keyed_reads
        inputs = [self._watermarks_read(read) for read in reads]
        if any(inputs) and not all(inputs):
            raise JobRefused(
                f"operator {declared.name!r} unites streams with and without a watermark, and so could never know how "
                "far event time has come; give all of its sources with_watermark(...), or none"
            )
        keys = tuple(dict.fromkeys(key for found in inputs for key in found))
        if keys:
            self._operator_watermarks[declared.name] = keys
        self._delays[declared.name] = self._delay_of(reads)

    def _delay_of(self, reads: Sequence[ReadNode]) -> int:
        """Microseconds by which rows may be behind the watermarks of their sources, since windows before stay open for
        so long."""
        before = {read.origin.operator for read in reads if isinstance(read.origin, OperatorOrigin)}
        return max((self._delays[operator] + self._specs[operator].output_delay_us for operator in before), default=0)

    def _event_time(self, reads: Sequence[ReadNode], schema: pa.Schema) -> EventTime | None:
        """The event time of an input, from the watermarks of its sources."""
        names, specs = self._event_times(reads), self._watermarks_of(reads)
        if not specs:
            return None
        zoned = any(
            spec.of_batches or self.schemas[SourceOrigin(spec.source, spec.output)].field(spec.column).type.tz
            for spec in specs
        )
        place = schema.get_field_index(names[0]) if len(names) == 1 else -1
        there = place >= 0 and pa.types.is_timestamp(schema.field(place).type)
        return EventTime(names, names[0] if there else None, zoned)

    def _watermarks_of(self, reads: Sequence[ReadNode]) -> list[WatermarkSpec]:
        return [self._watermarks[key] for read in reads for key in self._watermarks_read(read)]

    def _event_times(self, reads: Sequence[ReadNode]) -> tuple[str, ...]:
        """The sources' columns that hold the event time of these rows."""
        return tuple(dict.fromkeys(spec.column for spec in self._watermarks_of(reads)))

    def _watermarks_read(self, read: ReadNode) -> tuple[str, ...]:
        if isinstance(read.origin, OperatorOrigin):
            return self._operator_watermarks.get(read.origin.operator, ())
        watermark = read.watermark
        if watermark is None:
            return ()
        schema = self._schema_read(read)
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

    def _level_of(self, read: ReadNode) -> int:
        return self._levels[read.origin.operator] if isinstance(read.origin, OperatorOrigin) else 0

    def _sink_keys(self, declared: SinkDeclaration) -> tuple[str, ...]:
        """Key columns of the last operator before the sink; empty if its rows come from several operators with
        different keys."""
        keys = {
            self._specs[read.origin.operator].key_columns if isinstance(read.origin, OperatorOrigin) else ()
            for read in reads_of(declared.node)
        }
        return keys.pop() if len(keys) == 1 else ()

    def _refuse_unread_operators(self, legs: Sequence[Leg]) -> None:
        read = {leg.origin for leg in legs}
        for origin in self.schemas:
            if origin in read:
                continue
            kind, name = ("source", origin.source) if isinstance(origin, SourceOrigin) else ("operator", origin.kept_as)
            raise JobRefused(f"the output of {kind} {name!r} is used nowhere; write it to a sink (NoopSink discards)")


def _change_type(rows: Resolved) -> tuple[str, ...]:
    return () if rows.kind == "append" else (CHANGE_TYPE,)


def _of_one_schema(name: str, rows: Sequence[Resolved]) -> Resolved:
    """Unite the rows that go to an operator or a sink. Raises `JobRefused`."""
    first, *others = together(rows)
    if others:
        raise JobRefused(
            f"{name!r} unites streams of different schemas: {_line(first.schema)} and {_line(others[0].schema)}"
        )
    return first


def _line(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
