"""PySpark's `Column` as a text in Spark's SQL. Its tree, in the JVM or in Spark Connect's client, is read node by node.

PySpark is not imported.
"""

import re
from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta
from typing import Any

from holdfast.expressions.nodes import ExpressionRefused

_INFIX = {
    "+",
    "-",
    "*",
    "/",
    "%",
    "div",
    "=",
    "==",
    "<",
    "<=",
    ">",
    ">=",
    "<=>",
    "!=",
    "and",
    "or",
    "&",
    "|",
    "^",
    "like",
    "ilike",
    "rlike",
}
_PREFIX = {"!": "NOT ", "not": "NOT ", "~": "~", "negative": "-"}
_REFUSED = "is not supported in expressions; use transform(…)"


def text_of(column: Any) -> str:
    """Return the text of a column. Raises `ExpressionRefused` for parts without a text, such as Python functions."""
    classic = getattr(column, "_jc", None)
    return _connect(column._expr) if classic is None else _classic(classic.node())


def _call(name: str, given: Sequence[str]) -> str:
    lowered = name.lower()
    if lowered in _INFIX and len(given) == 2:
        return f"({given[0]} {lowered.upper()} {given[1]})"
    if lowered in _PREFIX and len(given) == 1:
        return f"({_PREFIX[lowered]}{given[0]})"
    if lowered == "in":
        return f"({given[0]} IN ({', '.join(given[1:])}))"
    if lowered in ("when", "case"):
        return _case(list(zip(given[::2], given[1::2], strict=False)), given[-1] if len(given) % 2 else None)
    return f"{name}({', '.join(given)})"


def _case(branches: Sequence[tuple[str, str]], otherwise: str | None) -> str:
    made = "".join(f" WHEN {condition} THEN {value}" for condition, value in branches)
    return f"CASE{made}{'' if otherwise is None else f' ELSE {otherwise}'} END"


def _quoted(parts: Sequence[str]) -> str:
    return ".".join(f"`{part.replace('`', '``')}`" for part in parts)


def text_literal(value: str) -> str:
    escaped = (
        value.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    )
    return f"'{escaped}'"


def _items(sequence: Any) -> list[Any]:
    return [sequence.apply(place) for place in range(sequence.size())]


def _classic(node: Any) -> str:
    kind = node.getClass().getSimpleName()
    made = _CLASSIC.get(kind)
    if made is None:
        raise ExpressionRefused(f"the Column {node.sql()[:100]} ({kind}) {_REFUSED}")
    return made(node)


def _classic_literal(node: Any) -> str:
    value = node.value()
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return text_literal(value)
    if isinstance(value, bytes | bytearray):
        return f"X'{bytes(value).hex()}'"
    name = "" if not hasattr(value, "getClass") else value.getClass().getName()
    if name == "java.sql.Date":
        return f"date '{value.toString()}'"
    if name == "java.sql.Timestamp":
        return f"timestamp_micros({value.getTime() // 1000 * 1_000_000 + value.getNanos() // 1000})"
    declared = node.sql()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return (
            f"CAST({text_literal(repr(value))} AS DOUBLE)"
            if value != value or abs(value) == float("inf")
            else f"{value!r}D"
        )
    if isinstance(value, int):
        return f"{value}L" if str(declared).endswith("L") else str(value)
    if name == "java.math.BigDecimal" or type(value).__name__ == "Decimal":
        return f"{value}BD"
    raise ExpressionRefused(f"the literal {declared} of a Column {_REFUSED}")


def _classic_case(node: Any) -> str:
    branches = [(_classic(each._1()), _classic(each._2())) for each in _items(node.branches())]
    otherwise = node.otherwise()
    return _case(branches, _classic(otherwise.get()) if otherwise.isDefined() else None)


def _classic_cast(node: Any) -> str:
    mode = node.evalMode()
    name = "TRY_CAST" if mode.isDefined() and "try" in mode.get().toString().lower() else "CAST"
    return f"{name}({_classic(node.child())} AS {node.dataType().sql()})"


def _classic_lambda(node: Any) -> str:
    names = [each.name() for each in _items(node.arguments())]
    return (
        f"({', '.join(names)}) -> {_classic(node.function())}"
        if len(names) > 1
        else f"{names[0]} -> {_classic(node.function())}"
    )


_CLASSIC: dict[str, Callable[[Any], str]] = {
    "UnresolvedAttribute": lambda node: _quoted(_items(node.nameParts())),
    "Literal": _classic_literal,
    "UnresolvedFunction": lambda node: _call(
        node.functionName(), [_classic(each) for each in _items(node.arguments())]
    ),
    "Cast": _classic_cast,
    "Alias": lambda node: f"{_classic(node.child())} AS {_quoted(_items(node.name()))}",
    "SqlExpression": lambda node: str(node.expression()),
    "CaseWhenOtherwise": _classic_case,
    "UnresolvedExtractValue": lambda node: f"{_classic(node.child())}[{_classic(node.extraction())}]",
    "LambdaFunction": _classic_lambda,
    "UnresolvedNamedLambdaVariable": lambda node: str(node.name()),
}


def _connect(node: Any) -> str:
    kind = type(node).__name__
    made = _CONNECT.get(kind)
    if made is None:
        raise ExpressionRefused(f"the Column {str(node)[:100]} ({kind}) {_REFUSED}")
    return made(node)


def _parts(name: str) -> list[str]:
    """Return the parts of a name such as ``a.`b.c` ``."""
    found = re.findall(r"`((?:[^`]|``)*)`|([^.`]+)", name)
    return [quoted.replace("``", "`") or plain for quoted, plain in found]


def _connect_literal(node: Any) -> str:
    value, kind = node._value, node._dataType.simpleString()
    if value is None:
        return "NULL" if kind == "void" else f"CAST(NULL AS {kind})"
    write = _LITERALS.get(kind.partition("(")[0].partition("<")[0])
    if write is None:
        raise ExpressionRefused(f"the literal {node} of a Column, of the type {kind}, {_REFUSED}")
    return write(value, node)


def _floating(value: float) -> str:
    is_plain = value == value and abs(value) != float("inf")
    return f"{value!r}D" if is_plain else f"CAST({text_literal(repr(value))} AS DOUBLE)"


def _decimal(value: Any, _: Any) -> str:
    """Write a decimal in the form that the server of Spark Connect uses, with a precision of at least ten digits."""
    scale = max(0, -int(value.as_tuple().exponent))
    digits = max(len(value.as_tuple().digits), scale, 10)
    return f"CAST({value:f}BD AS DECIMAL({digits},{scale}))"


def _time(value: int) -> str:
    return (datetime(1970, 1, 1) + timedelta(microseconds=value)).isoformat(" ", "microseconds")


_LITERALS: dict[str, Callable[[Any, Any], str]] = {
    "boolean": lambda value, _: "true" if value else "false",
    "tinyint": lambda value, _: f"CAST({value} AS TINYINT)",
    "smallint": lambda value, _: f"CAST({value} AS SMALLINT)",
    "int": lambda value, _: str(value),
    "bigint": lambda value, _: f"{value}L",
    "float": lambda value, _: f"CAST({_floating(value)} AS FLOAT)",
    "double": lambda value, _: _floating(value),
    "decimal": _decimal,
    "string": lambda value, _: text_literal(value),
    "binary": lambda value, _: f"X'{bytes(value).hex()}'",
    "date": lambda value, _: f"date '{date(1970, 1, 1) + timedelta(days=value)}'",
    "timestamp": lambda value, _: f"timestamp_micros({value})",
    "timestamp_ntz": lambda value, _: f"CAST('{_time(value)}' AS TIMESTAMP_NTZ)",
    "interval day to second": lambda value, _: f"INTERVAL {value} MICROSECONDS",
    "array": lambda value, node: (
        f"array({', '.join(_connect_literal(type(node)(each, node._dataType.elementType)) for each in value)})"
    ),
}


def _connect_cast(node: Any) -> str:
    kind = node._data_type if isinstance(node._data_type, str) else node._data_type.simpleString()
    return f"{'TRY_CAST' if node._eval_mode == 'try' else 'CAST'}({_connect(node._expr)} AS {kind})"


def _connect_case(node: Any) -> str:
    branches = [(_connect(condition), _connect(value)) for condition, value in node._branches]
    return _case(branches, None if node._else_value is None else _connect(node._else_value))


def _connect_lambda(node: Any) -> str:
    names = [".".join(each._name_parts) for each in node._arguments]
    shown = names[0] if len(names) == 1 else f"({', '.join(names)})"
    return f"{shown} -> {_connect(node._function)}"


_CONNECT: dict[str, Callable[[Any], str]] = {
    "ColumnReference": lambda node: _quoted(_parts(node._unparsed_identifier)),
    "LiteralExpression": _connect_literal,
    "UnresolvedFunction": lambda node: _call(node._name, [_connect(each) for each in node._args]),
    "CallFunction": lambda node: _call(node._name, [_connect(each) for each in node._args]),
    "CastExpression": _connect_cast,
    "ColumnAlias": lambda node: f"{_connect(node._child)} AS {_quoted(node._alias)}",
    "SQLExpression": lambda node: str(node._expr),
    "CaseWhen": _connect_case,
    "UnresolvedExtractValue": lambda node: f"{_connect(node._child)}[{_connect(node._extraction)}]",
    "LambdaFunction": _connect_lambda,
    "UnresolvedNamedLambdaVariable": lambda node: ".".join(node._name_parts),
}
