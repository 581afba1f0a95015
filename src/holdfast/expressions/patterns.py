"""LIKE and regular expressions. Java's syntax is translated to RE2 if both mean the same, and is refused otherwise."""

import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.expressions.mapping import with_settings
from holdfast.expressions.nodes import Binding, ExpressionRefused, Term, applied, constant, with_arrays
from holdfast.expressions.table import function
from holdfast.expressions.text_kernels import count_of, part_of

_LINE_ENDS = r"\n\r\x{85}\x{2028}\x{2029}"
_AT_END = rf"(?:(?:\r\n|[{_LINE_ENDS}])?\z)"
_SPACE = r"\t\n\x0B\f\r "
_SAME_ESCAPES = set("dDwWtnrfae") | {"A", "z"}
_SPECIAL = set("\\^$.|?*+()[]{}")


def like(binder: Binding, node: Term, pattern: Term, escape: str, folded: bool) -> Term:
    """Make `LIKE`, or `ILIKE`, which compares lower-case forms of both sides."""
    from holdfast.expressions.table import found

    if len(escape) != 1:
        raise ExpressionRefused(f"ESCAPE {escape!r}: expected a single character")
    node, pattern = (binder.fitted(each, "string", "an operand of LIKE") for each in (node, pattern))
    if folded:
        node, pattern = (found("lower").node(binder, [each]) for each in (node, pattern))
    if pattern.constant is not None and pattern.constant.is_valid:
        _like_parts(pattern.constant.as_py(), escape)
    return with_settings(
        pa.bool_(),
        lambda array, text: _matches_like(array, text, escape),
        node,
        pattern,
        fails=pattern.constant is None,
    )


def _like_parts(pattern: str, escape: str) -> list[str | None]:
    """Return the pattern as texts, with None for `%` and "" for `_`."""
    parts: list[str | None] = []
    place = 0
    while place < len(pattern):
        each = pattern[place]
        if each == escape:
            place += 1
            if place == len(pattern) or pattern[place] not in ("_", "%", escape):
                raise ExpressionRefused(
                    f"LIKE {pattern!r}: the escape {escape!r} stands before '%', '_' or itself alone"
                )
            parts.append(pattern[place])
        else:
            parts.append(None if each == "%" else "" if each == "_" else each)
        place += 1
    return parts


def _matches_like(array: pa.Array, pattern: str, escape: str) -> pa.Array:
    try:
        parts = _like_parts(pattern, escape)
    except ExpressionRefused as error:
        raise pa.ArrowInvalid(str(error)) from error
    inner = parts[1:-1] if len(parts) > 2 else []
    if all(parts):
        return pc.equal(array, "".join(map(str, parts)))
    if parts[-1] is None and all(parts[:-1]):
        return pc.starts_with(array, "".join(map(str, parts[:-1])))
    if parts[0] is None and all(parts[1:]):
        return pc.ends_with(array, "".join(map(str, parts[1:])))
    if parts[0] is None and parts[-1] is None and inner and all(inner):
        return pc.match_substring(array, "".join(map(str, inner)))
    made = "".join(".*" if each is None else "." if each == "" else re.escape(each) for each in parts)
    return pc.match_substring_regex(array, f"(?s)^(?:{made})\\z")


def java_to_re2(pattern: str) -> tuple[str, int]:
    """Translate a regular expression of Java; returns it with the number of its groups. Raises `ExpressionRefused`."""
    made, groups, place = [], 0, 0
    flags = re.match(r"\(\?([is]+)\)", pattern)
    any_character = False
    if flags:
        made.append(flags.group())
        any_character = "s" in flags.group(1)
        place = flags.end()

    def refused(part: str) -> ExpressionRefused:
        return ExpressionRefused(
            f"{part!r} in the regular expression {pattern!r} is not supported in expressions; use transform(…)"
        )

    while place < len(pattern):
        each = pattern[place]
        rest = pattern[place:]
        if each == "\\":
            text, place = _escaped(pattern, place, refused, False)
            made.append(text)
        elif each == "[":
            text, place = _class(pattern, place, refused)
            made.append(text)
        elif each == "(":
            if rest.startswith("(?") and not rest.startswith("(?:"):
                raise refused(rest[:4])
            groups += not rest.startswith("(?:")
            made.append("(?:" if rest.startswith("(?:") else f"(?P<g{groups}>")
            place += 3 if rest.startswith("(?:") else 1
        elif each == ".":
            made.append("." if any_character else f"[^{_LINE_ENDS}]")
            place += 1
        elif each == "$":
            made.append(_AT_END)
            place += 1
        elif each in "*+?}" and rest[1:2] == "+":
            raise refused(rest[:2])
        else:
            made.append(each)
            place += 1
    text = "".join(made)
    try:
        pc.match_substring_regex(pa.array([""]), text)
    except pa.ArrowInvalid as error:
        raise ExpressionRefused(f"{pattern!r} is no regular expression that is supported here: {error}") from error
    return text, groups


def _escaped(pattern: str, place: int, refused, inside: bool) -> tuple[str, int]:  # type: ignore[no-untyped-def]
    each = pattern[place + 1 : place + 2]
    if each == "s":
        return (_SPACE if inside else f"[{_SPACE}]"), place + 2
    if each == "S" and not inside:
        return f"[^{_SPACE}]", place + 2
    if each in _SAME_ESCAPES and each and not (inside and each in "Az"):
        return {"e": r"\x1B"}.get(each, f"\\{each}"), place + 2
    if each and not each.isalnum():
        return re.escape(each) if each.isascii() else each, place + 2
    raise refused(pattern[place : place + 2])


def _class(pattern: str, place: int, refused) -> tuple[str, int]:  # type: ignore[no-untyped-def]
    """Translate a character class such as `[a-z_]`."""
    made = "["
    place += 1
    if pattern[place : place + 1] == "^":
        made += "^"
        place += 1
    first = True
    while place < len(pattern):
        each = pattern[place]
        if each == "]" and not first:
            return made + "]", place + 1
        if each in "[]" or pattern[place : place + 2] == "&&":
            raise refused(pattern[place : place + 2])
        if each == "\\":
            text, place = _escaped(pattern, place, refused, True)
            made += text
        else:
            made += each
            place += 1
        first = False
    raise refused(made)


def literal_of(pattern: str) -> str | None:
    """Return the only text that a regular expression of Java matches, if this is plain from quoted characters alone."""
    text = re.sub(r"\\([^\w\s])", "", pattern, flags=re.ASCII)
    return None if _SPECIAL & set(text) else re.sub(r"\\(.)", r"\1", pattern)


def _pattern_of(node: Term, name: str) -> str:
    if node.constant is None or not node.constant.is_valid or node.type != pa.string():
        raise ExpressionRefused(f"the regular expression of {name} has to be a text in quotes in expressions")
    return str(node.constant.as_py())


@function("regexp_like rlike regexp", "string, string")
def regexp_like(_: Binding, node: Term, pattern: Term) -> Term:
    made, _groups = java_to_re2(_pattern_of(pattern, "rlike"))
    return with_settings(pa.bool_(), lambda array, _: pc.match_substring_regex(array, made), node, pattern, costly=True)


@function("regexp_extract", "string, string, int?")
def regexp_extract(_: Binding, node: Term, pattern: Term, group: Term | None = None) -> Term:
    made, groups = java_to_re2(_pattern_of(pattern, "regexp_extract"))
    if group is not None and group.constant is None:
        raise ExpressionRefused("regexp_extract: the number of the group has to be a literal")
    number = 1 if group is None or group.constant is None else int(group.constant.as_py())
    if not 0 <= number <= groups:
        raise ExpressionRefused(f"regexp_extract: the group {number} is not among the {groups} groups of the pattern")
    if not number and "$" in str(_pattern_of(pattern, "regexp_extract")):
        raise ExpressionRefused("regexp_extract: the whole match of a pattern with $ is not supported in expressions")
    whole = made if number else _with_flags_first(made)

    def kernel(array: pa.Array, _: str) -> pa.Array:
        found = pc.struct_field(pc.extract_regex(array, whole), f"g{number}")
        return pc.if_else(array.is_valid(), pc.fill_null(found, ""), None)

    return with_settings(pa.string(), kernel, node, pattern, costly=True)


@function("regexp_substr", "string, string")
def regexp_substr(binder: Binding, node: Term, pattern: Term) -> Term:
    from holdfast.expressions.table import found

    return found("nullif").node(
        binder, [regexp_extract(binder, node, pattern, constant(pa.scalar(0))), constant(pa.scalar(""))]
    )


def _with_flags_first(pattern: str) -> str:
    flags = re.match(r"\(\?[is]+\)", pattern)
    start = flags.group() if flags else ""
    return f"{start}(?P<g0>{pattern[len(start) :]})"


@function("regexp_replace", "string, string, string")
def regexp_replace(_: Binding, node: Term, pattern: Term, instead: Term) -> Term:
    given = _pattern_of(pattern, "regexp_replace")
    made, groups = java_to_re2(given)
    if "$" in given.replace("\\$", "") or pc.match_substring_regex(pa.array([""]), made)[0].as_py():
        raise ExpressionRefused(
            f"regexp_replace: a pattern such as {given!r}, which has $ or matches nothing at all, is not supported"
        )
    other = _replacement(_pattern_of(instead, "the replacement of regexp_replace"), groups)

    def kernel(array: pa.Array, *_: str) -> pa.Array:
        return pc.replace_substring_regex(array, made, other)

    return with_settings(pa.string(), kernel, node, pattern, instead, costly=True)


def _replacement(text: str, groups: int) -> str:
    """Translate Java's replacement, in which `$1` is a group and a backslash quotes the next character."""
    made, place = "", 0
    while place < len(text):
        each = text[place]
        following = text[place + 1 : place + 2]
        if each == "$":
            if not following.isdigit() or int(following) > groups or text[place + 2 : place + 3].isdigit():
                raise ExpressionRefused(f"regexp_replace: {text!r} refers to a group that the pattern does not have")
            made += f"\\{following}"
            place += 2
            continue
        if each == "\\":
            place += 1
            each = following
        made += "\\\\" if each == "\\" else each
        place += 1
    return made


def _check_start(pattern: str, name: str) -> None:
    """Refuse `^` and `\\A`: Arrow looks for each further match in the rest of the text, where they would match anew."""
    bare = re.sub(r"\\(?!A).|\[(?:\\.|[^\]\\])+\]", "", pattern, flags=re.DOTALL)
    if "^" in bare or "\\A" in bare:
        raise ExpressionRefused(
            f"{name}: the start of the text (^ or \\A), as in {pattern!r}, is not supported; use transform(…)"
        )


@function("regexp_count", "string, string")
def regexp_count(_: Binding, node: Term, pattern: Term) -> Term:
    made, _groups = java_to_re2(_pattern_of(pattern, "regexp_count"))
    _check_start(_pattern_of(pattern, "regexp_count"), "regexp_count")
    if pc.match_substring_regex(pa.array([""]), made)[0].as_py():
        raise ExpressionRefused("regexp_count: a pattern that matches nothing at all is not supported in expressions")
    literal = literal_of(_pattern_of(pattern, "regexp_count"))

    def kernel(array: pa.Array, _: str) -> pa.Array:
        return pc.count_substring_regex(array, made).cast(pa.int32()) if literal is None else count_of(array, literal)

    return with_settings(pa.int32(), kernel, node, pattern, costly=True)


@function("split", "string, string, int?")
def split(_: Binding, node: Term, pattern: Term, limit: Term | None = None) -> Term:
    given = _pattern_of(pattern, "split")
    made, _groups = java_to_re2(given)
    _check_start(given, "split")
    if "$" in given.replace("\\$", "") or pc.match_substring_regex(pa.array([""]), made)[0].as_py():
        raise ExpressionRefused(
            f"split: a pattern such as {given!r}, which has $ or matches nothing at all, is not supported"
        )
    if limit is not None and (limit.constant is None or not limit.constant.is_valid):
        raise ExpressionRefused("split: the limit has to be a number in expressions")
    most = -1 if limit is None or limit.constant is None else int(limit.constant.as_py())
    splits = None if most <= 0 else most - 1
    literal = literal_of(given)

    def kernel(array: pa.Array, _: str) -> pa.Array:
        if splits == 0:
            made_lists = pc.split_pattern(array, "\0\0", max_splits=None)
        elif literal is not None:
            made_lists = pc.split_pattern(array, literal, max_splits=splits)
        else:
            made_lists = pc.split_pattern_regex(array, made, max_splits=splits)
        return made_lists.cast(pa.list_(pa.string()))

    lists = with_settings(pa.list_(pa.string()), kernel, node, pattern, costly=True)
    return lists if literal is None or splits is not None else replace(lists, parts=(node, literal))


def item_of_split(text: Term, separator: str, place: int, from_one: bool, fails: bool) -> Term:
    """Make the term of an item of `split(text, separator)`."""

    def kernel(array: pa.Array) -> pa.Array:
        if place == 0 and from_one and array.null_count < len(array):
            raise pa.ArrowInvalid("the items of an array are counted from 1, not 0")
        if place == 0 if from_one else place < 0:
            found, there = array, np.zeros(len(array), bool)
        else:
            found, there = part_of(array, separator, min(place, 2**31 - 1) + (not from_one))
        if there.all():
            return found
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        if fails and not there[valid].all():
            raise pa.ArrowInvalid(f"an array has no item {place}")
        return pc.if_else(pa.array(there & valid), found, pa.scalar(None, pa.string()))

    return applied(pa.string(), with_arrays(kernel), text, fails=fails or from_one, costly=True)
