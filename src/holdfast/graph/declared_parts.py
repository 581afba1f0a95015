"""Descriptions, in words, of each declared source, operator and sink. Pure.

Stored state is found by name. A name made of a kind and a number ("aggregate-2") depends on the order of declarations.
By these descriptions, a restart notices that such a name now means another part of the job. Descriptions depend only on
declarations, so every version of Holdfast describes the same job in the same way.
"""

import dataclasses
from collections.abc import Mapping

import pyarrow as pa

from holdfast.functions.operator import OperatorInput, OperatorSpec
from holdfast.graph.declarations import Declarations, OperatorDeclaration
from holdfast.graph.describing import described_in_any_order
from holdfast.graph.nodes import Node, ReadNode, reads_of
from holdfast.graph.program import DeclaredPart, SourceOrigin
from holdfast.graph.settings_text import attributes_text, settings_text


def declared_parts(declared: Declarations, operators: Mapping[str, OperatorSpec]) -> dict[str, DeclaredPart]:
    """Describe all parts of a job by name: sources, then operators, then sinks, each in the order of declaration."""
    readers = _readers(declared)

    def part(role: str, name: str, nodes: list[Node], details: str, keys: tuple[str, ...] = ()) -> DeclaredPart:
        read_by = f"; read by {', '.join(sorted(readers[name]))}" if readers.get(name) else ""
        kind = declared.unnamed.get(name, "")
        inputs = tuple(sorted({_name(read) for read in reads_of(*nodes)}))
        return DeclaredPart(role, kind, name in declared.unnamed, keys, inputs, f"{details}{read_by}")

    sources = {name: part("source", name, [], each.stable_text) for name, each in declared.sources.items()}
    keyed = {
        name: dataclasses.replace(
            part(
                "operator", name, _nodes(each), _operator(each, operators[name]), tuple(operators[name].declared_keys)
            ),
            settings=_settings(operators[name]),
        )
        for name, each in declared.operators.items()
    }
    sinks = {
        name: part("sink", name, [each.node], f"{each.sink.stable_text} of {described_in_any_order(each.node)}")
        for name, each in declared.sinks.items()
    }
    return sources | keyed | sinks


def _operator(declared: OperatorDeclaration, spec: OperatorSpec) -> str:
    rows = [described_in_any_order(each.node) for each in declared.inputs]
    keys = [f"{'broadcast' if each.broadcast else 'key_by'}({', '.join(each.shown_keys)})" for each in declared.inputs]
    inputs = [f"{given} → {by}" for given, by in zip(rows, keys, strict=True)]
    function = getattr(spec, "function", None)
    made_by = "" if function is None else f"{type(function).__name__} "
    tables = [f"{name} ({_columns(table.values)})" for name, table in sorted(spec.described_tables().items())]
    return f"{made_by}of {' with '.join(inputs)}, giving {_columns(spec.output_schema)}; state {', '.join(tables)}"


def _settings(spec: OperatorSpec) -> str:
    """Describe the settings of an operator, and the attributes that its function has before it runs."""
    found = []
    for name, value in vars(spec).items():
        if name == "function":
            found.append(attributes_text(value))
        elif name not in ("name", "condition") and not _is_input(value):  # A condition may change, as a filter may.
            found.append(f"{name}={settings_text(value)}")
    return ", ".join(found)


def _is_input(value: object) -> bool:
    return isinstance(value, OperatorInput) or (
        isinstance(value, tuple) and any(isinstance(each, OperatorInput) for each in value)
    )


def _nodes(declared: OperatorDeclaration) -> list[Node]:
    return [each.node for each in declared.inputs]


def _readers(declared: Declarations) -> dict[str, set[str]]:
    """Return, for each part, the nearest later parts that the user named; other names depend on the order."""
    found: dict[str, set[str]] = {}
    reads = {name: each.reads for name, each in declared.operators.items()}
    reads |= {name: reads_of(each.node) for name, each in declared.sinks.items()}
    for name in reversed(reads):
        named = found.get(name, set()) if name in declared.unnamed else {name}
        for read in reads[name]:
            found.setdefault(_name(read), set()).update(named)
    return found


def _name(read: ReadNode) -> str:
    origin = read.origin
    return origin.source if isinstance(origin, SourceOrigin) else origin.operator


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
