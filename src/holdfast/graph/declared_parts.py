"""Each source, operator and sink as declared, in words. Pure.

State is found again by name, and a name that was made of a kind and a number ("aggregate-2") counts in the order of
declaration. By these descriptions a restart notices that such a name now means another part of the job. They are made
of declarations alone, so that another version of Holdfast describes the same job alike.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from holdfast.graph.describing import described
from holdfast.graph.program import DeclaredPart, OperatorOrigin, SourceOrigin

if TYPE_CHECKING:
    from holdfast.functions.operator import OperatorSpec
    from holdfast.graph.build import Declarations, OperatorDeclaration, Path


def declared_parts(declared: "Declarations", operators: "Mapping[str, OperatorSpec]") -> dict[str, DeclaredPart]:
    """Describe all parts of a job by name: sources, then operators, then sinks, each in the order of declaration."""
    readers = _readers(declared)

    def part(role: str, name: str, paths: "tuple[Path, ...]", details: str, keys: tuple[str, ...] = ()) -> DeclaredPart:
        read_by = f"; read by {', '.join(sorted(readers[name]))}" if readers.get(name) else ""
        kind = declared.unnamed.get(name, "")
        inputs = tuple(sorted({_name(path) for path in paths}))
        return DeclaredPart(role, kind, name in declared.unnamed, keys, inputs, f"{details}{read_by}")

    sources = {name: part("source", name, (), each.stable_text) for name, each in declared.sources.items()}
    keyed = {
        name: part("operator", name, each.paths, _operator(each, operators[name]), tuple(operators[name].declared_keys))
        for name, each in declared.operators.items()
    }
    sinks = {
        name: part("sink", name, each.paths, f"{each.sink.stable_text} of {_ways(each.paths)}")
        for name, each in declared.sinks.items()
    }
    return sources | keyed | sinks


def _operator(declared: "OperatorDeclaration", spec: "OperatorSpec") -> str:
    inputs = [
        f"{_ways(each.paths)} → {'broadcast' if each.broadcast else 'key_by'}({', '.join(each.shown_keys)})"
        for each in declared.inputs
    ]
    function = getattr(spec, "function", None)
    made_by = "" if function is None else f"{type(function).__name__} "
    tables = [f"{name} ({_columns(table.values)})" for name, table in sorted(spec.table_schemas().items())]
    return f"{made_by}of {' with '.join(inputs)}, giving {_columns(spec.output_schema)}; state {', '.join(tables)}"


def _ways(paths: "tuple[Path, ...]") -> str:
    """Describe paths into a stream, in an order that does not depend on that of a union."""
    return " and ".join(sorted(described((path,)) for path in paths))


def _readers(declared: "Declarations") -> dict[str, set[str]]:
    """Return the nearest parts behind each that the user named: the other names move with the order."""
    found: dict[str, set[str]] = {}
    paths = {name: each.paths for name, each in declared.operators.items()}
    paths |= {name: each.paths for name, each in declared.sinks.items()}
    for name in reversed(paths):
        named = found.get(name, set()) if name in declared.unnamed else {name}
        for path in paths[name]:
            found.setdefault(_name(path), set()).update(named)
    return found


def _name(path: "Path") -> str:
    origin: SourceOrigin | OperatorOrigin = path.origin
    return origin.source if isinstance(origin, SourceOrigin) else origin.operator


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
