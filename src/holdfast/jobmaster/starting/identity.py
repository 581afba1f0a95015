"""Comparison of new code with stored state, by the names of sources, operators and sinks. Pure, except for reading
Arrow schemas.

Stored state that is no longer declared is refused unless the user names it in `drop_state`: otherwise state and
positions would be lost silently.
"""

from collections.abc import Collection, Mapping

import msgspec
import pyarrow as pa

from holdfast.errors import JobRefused, SettingsError
from holdfast.graph.program import Program
from holdfast.jobmaster.checkpoints.job_facts import part_identities, stored_schemas
from holdfast.jobmaster.starting.unnamed import check_unnamed
from holdfast.journal.records import CheckpointRecord, OperatorIdentity
from holdfast.recovery.schema import check_kinds, check_schema
from holdfast.state.keys import check_key_types
from holdfast.storage import names
from holdfast.storage.reading import read_schema
from holdfast.storage.urls import refuse_long


def check_keys(program: Program) -> None:
    """Check the types of keys. Raises `JobRefused` naming the operator whose key has a type that keys cannot have."""
    for name, spec in program.operators.items():
        for schema in spec.table_schemas().values():
            try:
                check_key_types(pa.schema(list(schema.keys)[: len(spec.inputs[0].key_columns) or 1]))
            except JobRefused as error:
                raise JobRefused(f"operator {name!r}: {error}") from error


def check_names(program: Program, storage: str) -> None:
    """Check that all names of objects, of which names of sources and sinks are parts, fit into the stores.

    Raises `JobRefused` with the limit.
    """
    sinks = program.all_sinks
    for kind, declared in (("source", program.sources), ("sink", sinks)):
        for name in declared:
            try:
                names.escape(name)
            except SettingsError as error:
                raise JobRefused(
                    f"{kind} {error}: it is a part of the names of stored objects; give it a shorter name with name=…"
                ) from None
    try:
        refuse_long(storage, names.longest(program.sources, sinks), "storage")
        for name, sink in sinks.items():
            if sink.target is not None:
                refuse_long(sink.target[0], "_" + names.longest((), (name,)), f"sink {name!r}: target")
    except SettingsError as error:
        raise JobRefused(str(error)) from None


def without_dropped_output(base: CheckpointRecord, program: Program) -> CheckpointRecord:
    """Remove from a record the groups of sinks that the job no longer has, because the user dropped their output."""
    kept = program.all_sinks
    return msgspec.structs.replace(base, groups={sink: refs for sink, refs in base.groups.items() if sink in kept})


def check_dropped(base: CheckpointRecord | None, program: Program, drop_state: Collection[str]) -> None:
    """Check that each name in `drop_state` exists in this job or in the stored job. Raises `JobRefused`."""
    known = {*program.sources, *program.operators, *program.all_sinks}
    if base is not None:
        known |= {*base.operators, *base.offsets, *base.groups, *base.parts, *base.given_up}
    for name in drop_state:
        if name not in known:
            raise JobRefused(
                f"drop_state={list(drop_state)!r}: there is no source, operator or sink {name!r}, neither in this job "
                f"nor in its storage; there are: {', '.join(sorted(known))}. Correct the name, or leave it out"
            )


def check_identity(base: CheckpointRecord, program: Program, drop_state: Collection[str]) -> None:
    """Compare stored state with the declared job. Raises `JobRefused`, naming both sides, if they do not fit."""
    _refuse_missing("operator", "state", base.operators, program.operators, drop_state)
    _refuse_missing("source", "positions", base.offsets, program.sources, drop_state)
    waiting = [sink for sink, groups in base.groups.items() if groups]
    _refuse_missing("sink", "unpublished output", waiting, program.all_sinks, drop_state)
    check_unnamed(base.parts, program.parts, part_identities(program), drop_state)
    for name, stored in base.operators.items():
        if name in program.operators and name not in drop_state:
            _check_operator(name, stored, program)


def _refuse_missing(
    kind: str, what: str, stored: Collection[str], declared: Mapping[str, object], drop_state: Collection[str]
) -> None:
    for name in stored:
        if name not in declared and name not in drop_state:
            raise JobRefused(
                f"the storage holds {what} of {kind} {name!r}, but the job has no {kind} of that name (it has: "
                f"{', '.join(sorted(declared)) or 'none'}). Give the {kind} its old name with name={name!r}, "
                f"or give up its {what} with job.start(drop_state=[{name!r}])"
            )


def _check_operator(name: str, stored: OperatorIdentity, program: Program) -> None:
    spec = program.operators[name]
    if tuple(stored.key_columns) != tuple(spec.declared_keys):
        columns, lost = spec.inputs[0].key_columns, [key for key in stored.key_columns if key not in spec.declared_keys]
        of_columns = list(stored.key_columns[: len(columns)]) != list(columns)
        kept = "the key columns" if of_columns or not lost else ", ".join(lost)
        raise JobRefused(
            f"operator {name!r}: its stored state is keyed by ({', '.join(stored.key_columns)}), the job declares "
            f"key_by({', '.join(spec.declared_keys)}). State cannot be keyed anew: keep {kept}, give the "
            f"operator another name, or give up its state with job.start(drop_state=[{name!r}])"
        )
    what = f"the checkpoint's record, operator {name!r}"
    before = {table: read_schema(what, schema) for table, schema in stored.tables.items()}
    declared = stored_schemas(spec)
    check_kinds(before, declared, name)
    for table, schema in declared.items():
        if table in before:
            check_schema(before[table], schema, name, table)
    spec.check_stored(before)
