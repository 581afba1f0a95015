"""Texts in Spark's SQL, which sqlglot parses into a tree that keeps Spark's own function names.

sqlglot turns calls into functions that it knows from all dialects, and forgets the names in the text. Here a call stays
a call, `Anonymous(name, arguments)`, except for functions with a syntax of their own (`CAST`, `EXTRACT`, `TRIM`, …).
"""

from typing import Any, ClassVar

import sqlglot
from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokens import TokenType  # type: ignore[attr-defined]

from holdfast.expressions.nodes import ExpressionRefused

TEXT_BYTES_MAX = 1_000_000
"""Bound on the length of a text in SQL. The parser takes long for longer texts."""

_WITH_SYNTAX = ("CAST", "TRY_CAST", "EXTRACT", "SUBSTRING", "SUBSTR", "TRIM", "POSITION", "OVERLAY")


WINDOWING = ("TUMBLE", "HOP", "SESSION")
"""Functions that take a table: `TABLE(TUMBLE(TABLE bids, DESCRIPTOR(at), INTERVAL 10 SECONDS))`."""


def _windowing(name: str) -> Any:
    return lambda parser: exp.Anonymous(this=name.lower(), expressions=parser._parse_csv(parser._argument))


class _Parser(SparkParser):
    FUNCTIONS: ClassVar[dict[str, Any]] = {}
    FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
        **{name: SparkParser.FUNCTION_PARSERS[name] for name in _WITH_SYNTAX},
        **{name: _windowing(name) for name in WINDOWING},
    }

    def _argument(self) -> Any:
        """Parse an argument: a value, `SIZE => value`, or a table: `TABLE bids PARTITION BY k`."""
        if self._next is not None and self._next.token_type == TokenType.FARROW:
            name: Any = self._advance_any()
            self._advance()
            return exp.Kwarg(this=exp.var(name.text), expression=self._argument())
        if self._match(TokenType.TABLE):
            return exp.Table(this=self._parse_id_var(), partition=exp.Tuple(expressions=self._partition()))
        return self._parse_lambda()

    def _partition(self) -> list[Any]:
        """Parse `PARTITION BY a, b` before the next argument, which is `DESCRIPTOR(…)` or has a name."""
        if not self._match(TokenType.PARTITION_BY):
            return []
        found = [self._parse_assignment()]
        while self._curr is not None and self._curr.token_type == TokenType.COMMA and not self._begins_argument():
            self._advance()
            found.append(self._parse_assignment())
        return found

    def _begins_argument(self) -> bool:
        after, then = self._tokens[self._index + 1 : self._index + 3]
        return bool(after.text.upper() == "DESCRIPTOR" or then.token_type == TokenType.FARROW)

    NO_PAREN_FUNCTIONS: ClassVar[dict[Any, Any]] = {}


class SparkCalls(Spark):
    """Spark's dialect, in which calls of functions keep the names that they have in the text."""

    class Tokenizer(Spark.Tokenizer):
        KEYWORDS: ClassVar[dict[str, Any]] = {
            name: token for name, token in Spark.Tokenizer.KEYWORDS.items() if name not in ("WINDOW", "SESSION")
        }
        """Key words except WINDOW and SESSION, whose clauses are not supported: here they are always calls."""

        STRING_ESCAPES: ClassVar[list[str]] = [*Spark.Tokenizer.STRING_ESCAPES, "'", '"']
        """A doubled quote within quotes is a quote: `'it''s'`."""

    Parser = _Parser


def name_of(tree: Any) -> str | None:
    """Return the name that a text gives its value: an alias, or the last part of `a.b`."""
    if isinstance(tree, exp.Alias):
        return str(tree.alias)
    if isinstance(tree, exp.Column):
        return str(tree.name)
    return str(tree.expression.name) if isinstance(tree, exp.Dot) else None


def place_of(tree: Any) -> str:
    """Return the place of a tree in its text, ` at line 1, column 5`; empty if it is not known."""
    places = [each.meta for each in tree.walk() if each.meta.get("line")] if isinstance(tree, exp.Expression) else []
    place = min(((each["line"], each["col"]) for each in places), default=None)
    return "" if place is None else f" at line {place[0]}, column {place[1]}"


def parsed(text: str) -> Any:
    """Parse an expression or a query. Raises `ExpressionRefused` with the place in the text."""
    if len(text) > TEXT_BYTES_MAX:
        raise ExpressionRefused(f"the text has {len(text):,} characters; at most {TEXT_BYTES_MAX:,} are read")
    try:
        trees = sqlglot.parse(text, dialect=SparkCalls)
    except SqlglotError as error:
        found = getattr(error, "errors", None)
        if found:
            first = found[0]
            raise ExpressionRefused(
                f"{text!r} is not Spark SQL: {first['description']} at line {first['line']}, column {first['col']}"
            ) from error
        raise ExpressionRefused(f"{text!r} is not Spark SQL: {error}") from error
    except RecursionError as error:
        raise ExpressionRefused(f"{text[:80]!r}… is nested too deeply to be parsed") from error
    made = [tree for tree in trees if tree is not None]
    if len(made) != 1:
        raise ExpressionRefused(f"{text!r}: expected a single expression, found {len(made)}")
    return made[0]
