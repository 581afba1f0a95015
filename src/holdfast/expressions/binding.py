"""Binding of a parsed tree to a schema: it finds columns and functions, and casts values to common types."""

from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches

import pyarrow as pa
from sqlglot import exp

from holdfast.arrays import rebuilt
from holdfast.expressions import operators
from holdfast.expressions.conversions import cast
from holdfast.expressions.literals import interval, number, text_of_literal
from holdfast.expressions.nodes import (
    ExpressionRefused,
    Scope,
    SharedTerm,
    SqlSettings,
    Term,
    Value,
    constant,
    null_of,
)
from holdfast.expressions.table import NEAREST, found
from holdfast.expressions.types import (
    INSTANT,
    LOCAL,
    common_type,
    is_integer,
    is_number,
    is_time,
    spark_type,
    type_name,
    type_of_sql,
)

_ASIS = {"any"}
_CASTS = {
    "string": pa.string(), "int": pa.int32(), "long": pa.int64(), "double": pa.float64(), "date": pa.date32(),
    "timestamp": INSTANT, "binary": pa.binary(), "bool": pa.bool_(),
}  # fmt: skip
_TYPE_CALLS = {
    "tinyint": pa.int8(), "smallint": pa.int16(), "int": pa.int32(), "bigint": pa.int64(), "float": pa.float32(),
    "double": pa.float64(), "string": pa.string(), "boolean": pa.bool_(), "date": pa.date32(), "timestamp": INSTANT,
    "binary": pa.binary(), "decimal": pa.decimal128(10, 0),
}  # fmt: skip
LAMBDA_FUNCTIONS = {
    "transform",
    "filter",
    "exists",
    "forall",
    "aggregate",
    "reduce",
    "zip_with",
    "map_filter",
    "transform_keys",
    "transform_values",
}


class Binder:
    """Binds trees to a schema."""

    def __init__(self, schema: pa.Schema, settings: SqlSettings) -> None:
        self.schema = schema
        self.settings = settings
        self.reads: set[str] = set()
        """The columns of the schema that the bound trees read."""
        self.parameters: dict[str, Term] = {}
        """The parameters of the lambdas around the tree that is being bound."""
        self.refused: exp.Expression | None = None
        """The innermost tree that was refused."""
        self._known: dict[exp.Expression, SharedTerm] = {}
        """The terms of parts outside of lambdas: a part that occurs twice becomes a single term."""

    def bound(self, tree: exp.Expression) -> Term:
        """Return the term of a tree. Raises `ExpressionRefused`."""
        try:
            if self.parameters:
                return self._bound(tree)
            if tree not in self._known:
                self._known[tree] = SharedTerm(self._bound(tree))
            return self._known[tree].used()
        except ExpressionRefused:
            self.refused = tree if self.refused is None else self.refused
            raise

    def _bound(self, tree: exp.Expression) -> Term:
        _refuse_unread(tree)
        special = _SPECIAL.get(type(tree))
        if special is not None:
            made: Term = special(self, tree)
            return made
        operator = operators.OPERATORS.get(type(tree))
        if operator is not None:
            return operator(self, *(self.bound(each) for each in _operands(tree)))
        raise ExpressionRefused(f"{_shown(tree)} is not supported in expressions; use transform(…)")

    def column(self, parts: Sequence[str]) -> Term:
        """Return the term of a column, or of a field within it."""
        first, *fields = parts
        node: Term = self.parameters[first] if first in self.parameters else self._column(first)
        for name in fields:
            node = operators.field_of(self, node, name)
        return node

    def _column(self, given: str) -> Term:
        names = self.schema.names
        same = [each for each in names if each == given] or [each for each in names if each.lower() == given.lower()]
        if len(same) != 1:
            near = get_close_matches(given, names, NEAREST, 0.4) or names[:10]
            said = f"there are several columns {given!r}" if same else f"there is no column {given!r}"
            raise ExpressionRefused(f"{said}; the nearest are {', '.join(near)}")
        name = same[0]
        kind = spark_type(self.schema.field(name).type)
        if kind is None:
            raise ExpressionRefused(
                f"column {name!r} is {self.schema.field(name).type}, a type that Spark does not have; cast it with "
                "map_batches first"
            )
        self.reads.add(name)

        def run(rows: Scope) -> Value:
            array = rows.column(name)
            return array if array.type == kind else _plain(array, kind)

        return Term(kind, run, name=name)

    def fitted(self, node: Term, kind: str, place: str) -> Term:
        """Cast an argument to the type that a function takes, if Spark does this implicitly."""
        if kind in _ASIS or pa.types.is_null(node.type):
            return node if kind not in _CASTS else cast(node, _CASTS[kind], self.settings)
        is_text = node.type == pa.string()
        if kind == "number":
            if is_number(node.type):
                return node
            if is_text and self.settings.ansi:
                return cast(node, pa.float64(), self.settings)
        elif kind == "integer":
            if is_integer(node.type):
                return node
        elif kind in ("array", "map", "struct"):
            tests = {"array": pa.types.is_list, "map": pa.types.is_map, "struct": pa.types.is_struct}
            if tests[kind](node.type):
                return node
        elif kind == "text":
            if is_text or node.type == pa.binary():
                return node
            if not pa.types.is_nested(node.type):
                return cast(node, pa.string(), self.settings)
        elif kind == "local":
            if is_time(node.type):
                return node
            if is_text:
                return cast(node, INSTANT, self.settings)
        elif self._fits(node.type, kind):
            return cast(node, _CASTS[kind], self.settings)
        raise ExpressionRefused(f"{place} is {type_name(node.type)}; expected {kind}: cast it to that")

    def _fits(self, found: pa.DataType, kind: str) -> bool:
        wanted = _CASTS[kind]
        if found == wanted:
            return True
        if found == pa.string():
            return kind not in ("bool", "binary")
        if kind == "string":
            return not pa.types.is_nested(found) and found != pa.binary()
        if kind in ("int", "long"):
            return is_integer(found) and found.bit_width <= wanted.bit_width
        if kind == "double":
            return is_number(found)
        return kind in ("date", "timestamp") and is_time(found)

    def together(self, nodes: Sequence[Term], place: str) -> list[Term]:
        """Cast terms to their common type."""
        kind: pa.DataType | None = pa.null()
        for node in _texts_last(nodes):
            wider = None if kind is None else common_type(kind, node.type, self.settings.ansi)
            if wider is None:
                shown = ", ".join(type_name(each.type) for each in nodes)
                raise ExpressionRefused(f"{place} brings together {shown}, which have no common type; cast them")
            kind = wider
        return [cast(node, kind, self.settings) for node in nodes]


def _texts_last(nodes: Sequence[Term]) -> list[Term]:
    return sorted(nodes, key=lambda node: node.type == pa.string())


def _plain(array: pa.Array, kind: pa.DataType) -> pa.Array:
    array = rebuilt(array, lambda leaf: leaf)
    return array if array.type == kind else array.cast(kind)


def _shown(tree: exp.Expression) -> str:
    text = tree.sql("spark")
    return text if len(text) <= 100 else f"{text[:100]}…"


_USUAL_PARTS = {"this", "expression", "expressions", "safe", "typed"}
_FURTHER_PARTS: dict[type[exp.Expression], set[str]] = {
    exp.Column: {"table", "db", "catalog"}, exp.Identifier: {"quoted"}, exp.Literal: {"is_string"},
    exp.Alias: {"alias"}, exp.Cast: {"to"}, exp.TryCast: {"to"}, exp.Interval: {"unit"}, exp.Trim: {"position"},
    exp.Case: {"ifs", "default"}, exp.If: {"true", "false"}, exp.In: {"query"}, exp.Between: {"low", "high"},
    exp.Like: {"negate"}, exp.ILike: {"negate"}, exp.Substring: {"start", "length"}, exp.StrPosition: {"substr"},
    exp.Overlay: {"from_", "for_"},
}  # fmt: skip
"""The parts of a tree, beside the usual ones, that are read here."""


def _refuse_unread(tree: exp.Expression) -> None:
    """Raise `ExpressionRefused` for a part that this module ignores, such as SYMMETRIC of BETWEEN."""
    known = _USUAL_PARTS | _FURTHER_PARTS.get(type(tree), set())
    unread = [name for name, value in tree.args.items() if value and name not in known]
    if unread:
        raise ExpressionRefused(
            f"{_shown(tree)}: {unread[0].rstrip('_').upper()} is not supported in expressions; use transform(…)"
        )


def _operands(tree: exp.Expression) -> list[exp.Expression]:
    return [each for each in (tree.args.get("this"), tree.args.get("expression")) if isinstance(each, exp.Expression)]


def _column(binder: Binder, tree: exp.Column) -> Term:
    return binder.column([part.name for part in tree.parts])


def _identifier(binder: Binder, tree: exp.Identifier) -> Term:
    return binder.column([tree.name])


def _dot(binder: Binder, tree: exp.Dot) -> Term:
    if not isinstance(tree.expression, exp.Identifier):
        raise ExpressionRefused(f"{_shown(tree)} is not supported in expressions; use transform(…)")
    return operators.field_of(binder, binder.bound(tree.this), tree.expression.name)


def _literal(_: Binder, tree: exp.Literal) -> Term:
    return constant(pa.scalar(tree.this, pa.string())) if tree.is_string else number(tree.this)


def _alias(binder: Binder, tree: exp.Alias) -> Term:
    node = binder.bound(tree.this)
    return Term(node.type, node.run, node.fails, node.constant, tree.alias)


def _cast(binder: Binder, tree: exp.Cast) -> Term:
    literal = tree.this if isinstance(tree.this, exp.Literal) else None
    kind = type_of_sql(tree.to)
    if literal is not None and not literal.is_string and not tree.args.get("safe") and is_number(kind):
        with suppress(ExpressionRefused, pa.ArrowInvalid):  # a number outside its type's range is cast like others
            return number(literal.this, kind)
    node = binder.bound(tree.this)
    return cast(node, kind, binder.settings, "try" if tree.args.get("safe") else None)


def _interval(_: Binder, tree: exp.Interval) -> Term:
    return interval(tree)


def _is(binder: Binder, tree: exp.Is) -> Term:
    node = binder.bound(tree.this)
    if isinstance(tree.expression, exp.Null):
        return operators.is_null(binder, node)
    if isinstance(tree.expression, exp.Boolean):
        return operators.is_same(binder, node, constant(pa.scalar(tree.expression.this)))
    raise ExpressionRefused(f"{_shown(tree)} is not supported in expressions; use transform(…)")


def _call(binder: Binder, tree: exp.Anonymous) -> Term:
    name = str(tree.this).lower()
    if name in LAMBDA_FUNCTIONS:
        from holdfast.expressions import lambdas

        return lambdas.bound(binder, name, tree.expressions)
    if name in _TYPE_CALLS and len(tree.expressions) == 1:
        return cast(binder.bound(tree.expressions[0]), _TYPE_CALLS[name], binder.settings)
    if name in _WITH_UNITS and len(tree.expressions) == 3:
        from holdfast.expressions.units import of_unit

        unit, *given = tree.expressions
        return of_unit(binder, name, unit.name, *map(binder.bound, given))
    function = found(name)
    given = [binder.bound(each) for each in (_recased(name, tree.expressions) if name in _CASES else tree.expressions)]
    if name == "decode" and len(given) > 2:
        return _decoded(binder, given)
    if name in _TRIMS and len(given) == 2:
        return found(_TRIMS[name]).node(binder, given if name == "btrim" else given[::-1])
    return function.node(binder, given)


def _recased(name: str, given: Sequence[exp.Expression]) -> Sequence[exp.Expression]:
    """Return the text below all changes of case, of which Spark's optimizer keeps the last: `lower(upper(s))`."""
    inner = given
    while len(inner) == 1 and isinstance(inner[0], exp.Anonymous) and str(inner[0].this).lower() in _CASES:
        inner = inner[0].expressions
    return inner if any(each.find(exp.Identifier) for each in inner) else given


_CASES = {"upper", "ucase", "lower", "lcase"}
_WITH_UNITS = {"dateadd", "timestampadd", "datediff", "timestampdiff", "date_diff", "date_add"}
_TRIMS = {"btrim": "trim_of", "ltrim": "ltrim_of", "rtrim": "rtrim_of"}
"""The functions that also take the characters to remove. `btrim` takes them after the text, the others before it."""


def _decoded(binder: Binder, given: Sequence[Term]) -> Term:
    """Make `decode(value, search, result, …, default)`, in which null equals null."""
    value, *rest = given
    default = [rest.pop()] if len(rest) % 2 else [null_of(pa.null())]
    conditions = [operators.is_same(binder, value, each) for each in rest[::2]]
    return operators.chosen(binder, conditions, [*rest[1::2], *default])


def _named(name: str, *keys: str):  # type: ignore[no-untyped-def]
    def build(binder: Binder, tree: exp.Expression) -> Term:
        given = [tree.args.get(key) for key in keys]
        return found(name).node(binder, [binder.bound(each) for each in given if each is not None])

    return build


def _extract(binder: Binder, tree: exp.Extract) -> Term:
    return found("date_part").node(binder, [constant(pa.scalar(tree.this.name)), binder.bound(tree.expression)])


def _trim(binder: Binder, tree: exp.Trim) -> Term:
    name = {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(str(tree.args.get("position") or "BOTH").upper(), "trim")
    node, removed = binder.bound(tree.this), tree.expression
    if removed is None:
        return found(name).node(binder, [node])
    return found(f"{name}_of").node(binder, [node, binder.bound(removed)])


def _transform(binder: Binder, tree: exp.Transform) -> Term:
    from holdfast.expressions import lambdas

    return lambdas.bound(binder, "transform", [tree.this, tree.expression])


def _bracket(binder: Binder, tree: exp.Bracket) -> Term:
    return operators.item_of(binder, binder.bound(tree.this), binder.bound(tree.expressions[0]))


def _in(binder: Binder, tree: exp.In) -> Term:
    if tree.args.get("query") is not None:
        raise ExpressionRefused(f"{_shown(tree)}: IN takes a list here, not a query")
    return operators.is_in(binder, binder.bound(tree.this), [binder.bound(each) for each in tree.expressions])


def _between(binder: Binder, tree: exp.Between) -> Term:
    ends = (("ge", "low"), ("le", "high"))
    return operators.both(
        binder,
        *(operators.compared(binder, how, binder.bound(tree.this), binder.bound(tree.args[end])) for how, end in ends),
    )


def _case(binder: Binder, tree: exp.Case) -> Term:
    conditions, values = [], []
    for each in tree.args["ifs"]:
        condition = binder.bound(each.this)
        if tree.this is not None:
            condition = operators.compared(binder, "eq", binder.bound(tree.this), condition)
        conditions.append(condition)
        values.append(binder.bound(each.args["true"]))
    default = tree.args.get("default")
    values.append(null_of(pa.null()) if default is None else binder.bound(default))
    return operators.chosen(binder, conditions, values)


def _if(binder: Binder, tree: exp.If) -> Term:
    otherwise = tree.args.get("false")
    values = [binder.bound(tree.args["true"]), null_of(pa.null()) if otherwise is None else binder.bound(otherwise)]
    return operators.chosen(binder, [binder.bound(tree.this)], values)


def _like(binder: Binder, tree: exp.Expression, escape: str = "\\") -> Term:
    from holdfast.expressions import patterns

    node, pattern = binder.bound(tree.this), binder.bound(tree.expression)
    made = patterns.like(binder, node, pattern, escape, isinstance(tree, exp.ILike))
    return operators.negated(binder, made) if tree.args.get("negate") else made


def _escape(binder: Binder, tree: exp.Escape) -> Term:
    return _like(binder, tree.this, text_of_literal(tree.expression))


def _concat(binder: Binder, tree: exp.Concat) -> Term:
    return found("concat").node(binder, [binder.bound(each) for each in tree.expressions])


def _negative(binder: Binder, tree: exp.Neg) -> Term:
    if isinstance(tree.this, exp.Literal) and not tree.this.is_string:
        return number(f"-{tree.this.this}")
    return operators.negative(binder, binder.bound(tree.this))


_SPECIAL = {
    exp.Column: _column,
    exp.Identifier: _identifier,
    exp.Dot: _dot,
    exp.Literal: _literal,
    exp.Alias: _alias,
    exp.Cast: _cast,
    exp.TryCast: _cast,
    exp.Interval: _interval,
    exp.Is: _is,
    exp.Anonymous: _call,
    exp.Extract: _extract,
    exp.Trim: _trim,
    exp.Transform: _transform,
    exp.Bracket: _bracket,
    exp.In: _in,
    exp.Between: _between,
    exp.Case: _case,
    exp.If: _if,
    exp.Like: _like,
    exp.ILike: _like,
    exp.Escape: _escape,
    exp.Concat: _concat,
    exp.Neg: _negative,
    exp.Paren: lambda binder, tree: binder.bound(tree.this),
    exp.Null: lambda binder, tree: null_of(pa.null()),
    exp.Boolean: lambda binder, tree: constant(pa.scalar(bool(tree.this))),
    exp.HexString: lambda binder, tree: constant(pa.scalar(bytes.fromhex("0" * (len(tree.this) % 2) + tree.this))),
    exp.RawString: lambda binder, tree: constant(pa.scalar(tree.this)),
    exp.Substring: _named("substring", "this", "start", "length"),
    exp.StrPosition: _named("instr", "this", "substr"),
    exp.Overlay: _named("overlay", "this", "expression", "from_", "for_"),
    exp.RegexpLike: _named("regexp_like", "this", "expression"),
}

__all__ = ["LOCAL", "Binder"]
