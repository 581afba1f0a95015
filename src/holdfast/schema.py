"""Conversion of schemas that users give to Arrow schemas: a `pyarrow.Schema`, a Spark `StructType`, or a DDL string.

The conversion follows Spark's own mapping to Arrow: TIMESTAMP is microseconds in UTC, TIMESTAMP_NTZ is microseconds
without a zone, and list items are called "element". PySpark is not imported: a `StructType` is recognised by its
`jsonValue()`.

This is the grammar of the DDL. Keywords may be in upper or lower case, and `NAME: TYPE` is allowed, as in Spark:

    schema := field ("," field)*
    field  := name [":"] type ["NOT" "NULL"] ["COMMENT" 'text']
    type   := word ["(" number ("," number)* ")"] | ARRAY<type> | MAP<type, type> | STRUCT<[schema]>
"""

import re
from typing import Any, Literal, NoReturn

import pyarrow as pa

from holdfast.arrays import plain_schema
from holdfast.errors import SettingsError

CHANGE_TYPE = "_change_type"
"""The reserved column with the kind of change: insert, update_preimage, update_postimage or delete."""
REMOVING_CHANGES = ("delete", "update_preimage")
"""Change types that remove a row. An update's old row may have another key than its new row."""
PUTTING_CHANGES = ("insert", "update_postimage")
"""Change types that add a row. A null in the column also adds a row."""
CHANGE_TYPES = (*PUTTING_CHANGES, *REMOVING_CHANGES)

StreamKind = Literal["append", "changes", "upserts"]
"""`append`: each row counts forever. `changes`: `_change_type` says whether a row was added or removed, and an update
is two rows, the old one and the new one. `upserts`: rows replace or delete earlier ones by a key, and an update is only
the new row."""

_PLAIN: dict[str, pa.DataType] = {
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ltz": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "void": pa.null(),
}
_DECIMAL = ("decimal", "dec", "numeric")
_TEXT = ("varchar", "char", "character")

_TOKENS = re.compile(r"""\s*(?:(`(?:[^`]|``)*`)|('(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.)*")|(\w+)|([<>(),:-]))""")


def to_arrow_schema(schema: Any) -> pa.Schema:
    """Return `schema` as a `pyarrow.Schema` in a plain layout: for instance, a dictionary of texts becomes text.

    Raises `SettingsError` if it is of another kind or cannot be read.
    """
    if isinstance(schema, pa.Schema):
        found = plain_schema(schema)
    elif isinstance(schema, str):
        found = pa.schema(_DdlParser(schema).schema())
    elif callable(getattr(schema, "jsonValue", None)):
        found = pa.schema(_json_fields(schema.jsonValue()))
    else:
        raise SettingsError(
            f"schema is {schema!r} ({type(schema).__name__}); expected a pyarrow.Schema, a Spark StructType "
            "or a DDL string such as 'id BIGINT, name STRING'"
        )
    repeated = sorted({name for name in found.names if found.names.count(name) > 1})
    if repeated or not found.names:
        problem = f"names {', '.join(map(repr, repeated))} more than once" if repeated else "has no columns"
        raise SettingsError(f"schema {problem}; each column needs a name of its own")
    return found


def _named_type(word: str, arguments: list[int]) -> pa.DataType | None:
    """Return the type that a word with its numbers in brackets names; None if no type has this name."""
    if word in _PLAIN and not arguments:
        return _PLAIN[word]
    if word in _TEXT and len(arguments) == 1:
        return pa.string()
    if word in _DECIMAL and len(arguments) <= 2:
        precision, scale = (*arguments, *(10, 0)[len(arguments) :])
        if 1 <= precision <= 38 and 0 <= scale <= precision:
            return pa.decimal128(precision, scale)
    return None


class _DdlParser:
    """Parses tokens by recursive descent. `_at` is the index of the next token."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, int]] = []
        at = 0
        while text[at:].strip():
            match = _TOKENS.match(text, at)
            if match is None:
                start = at + len(text[at:]) - len(text[at:].lstrip())
                self._refuse("a name, a type or one of < > ( ) , :", text[start], start)
            self._tokens.append((match.group(match.lastindex or 0), match.start(match.lastindex or 0)))
            at = match.end()
        self._at = 0

    def schema(self) -> list[pa.Field]:
        fields = self._fields()
        if self._peek() is not None:
            self._refuse("',' or the end")
        return fields

    def _fields(self) -> list[pa.Field]:
        fields = [self._field()]
        while self._accept(","):
            fields.append(self._field())
        return fields

    def _field(self) -> pa.Field:
        name = self._name()
        self._accept(":")
        kind = self._type()
        nullable = True
        if self._accept("not"):
            self._expect("null")
            nullable = False
        if self._accept("comment"):
            self._quoted()
        return pa.field(name, kind, nullable=nullable)

    def _type(self) -> pa.DataType:
        start, word = self._at, self._word().lower()
        if word == "array":
            self._expect("<")
            item = self._type()
            self._expect(">")
            return pa.list_(pa.field("element", item))
        if word == "map":
            self._expect("<")
            key = self._type()
            self._expect(",")
            value = self._type()
            self._expect(">")
            return pa.map_(key, value)
        if word == "struct":
            self._expect("<")
            fields = [] if self._peek() == ">" else self._fields()
            self._expect(">")
            return pa.struct(fields)
        kind = _named_type(word, self._arguments())
        if kind is None:
            self._at = start
            self._refuse("a type such as BIGINT, DOUBLE, STRING, TIMESTAMP, DECIMAL(10, 2) or ARRAY<INT>")
        return kind

    def _arguments(self) -> list[int]:
        numbers: list[int] = []
        if self._accept("("):
            numbers.append(self._number())
            while self._accept(","):
                numbers.append(self._number())
            self._expect(")")
        return numbers

    def _peek(self) -> str | None:
        return self._tokens[self._at][0] if self._at < len(self._tokens) else None

    def _take(self) -> str:
        self._at += 1
        return self._tokens[self._at - 1][0]

    def _accept(self, token: str) -> bool:
        found = self._peek()
        if found is None or found.lower() != token:
            return False
        self._at += 1
        return True

    def _expect(self, token: str) -> None:
        if not self._accept(token):
            self._refuse(repr(token.upper()))

    def _name(self) -> str:
        found = self._peek()
        if found is not None and found.startswith("`") and len(found) > 2:
            return self._take()[1:-1].replace("``", "`")
        return self._word("a column name")

    def _word(self, expected: str = "a type") -> str:
        found = self._peek()
        if found is None or not (found[0].isalnum() or found[0] == "_"):
            self._refuse(expected)
        return self._take()

    def _number(self) -> int:
        found = self._peek()
        if found is None or not found.isdecimal():
            self._refuse("a number")
        return int(self._take())

    def _quoted(self) -> str:
        found = self._peek()
        if found is None or found[0] not in "'\"":
            self._refuse("a quoted text")
        return self._take()

    def _refuse(self, expected: str, found: str | None = None, at: int | None = None) -> NoReturn:
        if found is None:
            found, at = self._tokens[self._at] if self._at < len(self._tokens) else ("the end", len(self._text))
        raise SettingsError(f"schema {self._text!r}: found {found!r} at character {at}; expected {expected}")


def _json_fields(value: Any) -> list[pa.Field]:
    if not isinstance(value, dict) or value.get("type") != "struct":
        raise SettingsError(f"schema is the Spark type {value!r}; expected a StructType")
    return [pa.field(f["name"], _json_type(f["type"]), nullable=f["nullable"]) for f in value["fields"]]


def _json_type(value: Any) -> pa.DataType:
    if isinstance(value, str):
        match = re.fullmatch(r"(\w+)(?:\(([\d, ]*)\))?", value)
        numbers = [int(number) for number in (match.group(2) or "").split(",") if number.strip()] if match else []
        kind = _named_type(match.group(1).lower(), numbers) if match else None
        if kind is not None:
            return kind
    elif value.get("type") == "array":
        return pa.list_(pa.field("element", _json_type(value["elementType"]), nullable=value["containsNull"]))
    elif value.get("type") == "map":
        item = pa.field("value", _json_type(value["valueType"]), nullable=value["valueContainsNull"])
        return pa.map_(_json_type(value["keyType"]), item)
    elif value.get("type") == "struct":
        return pa.struct(_json_fields(value))
    raise SettingsError(f"Spark type {value!r} has no counterpart here; use a plain type, a list, a map or a struct")
