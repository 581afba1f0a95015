"""Functions of texts. Characters are Unicode code points; beyond ASCII, case changes follow Unicode's full mapping."""

import base64 as base_64
import re
from collections.abc import Callable
from functools import reduce
from typing import Any
from urllib.parse import quote_plus, unquote_plus

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.expressions.conversions import cast
from holdfast.expressions.mapping import mapped, mapping, with_settings
from holdfast.expressions.nodes import Binding, ExpressionRefused, Term, Value, applied, constant, with_arrays
from holdfast.expressions.table import function, simple
from holdfast.expressions.text_kernels import part_of
from holdfast.expressions.types import type_name

TEXT = pa.string()


def _of_case(ascii_kernel: Callable[..., Any], full: Callable[[str], str]) -> Callable[[pa.Array], pa.Array]:
    def kernel(array: pa.Array) -> pa.Array:
        if pc.all(pc.string_is_ascii(array)).as_py() is not False:
            return ascii_kernel(array)
        return mapped(array, full, TEXT)

    return kernel


def _per_value(names: str, takes: str, gives: pa.DataType, fn: Callable[..., Any], fails: bool = False) -> None:
    kernel = mapping(fn, gives)
    kernel.__module__ = __name__
    simple(names, takes, gives, kernel, arrays=True, fails=fails)


def _kernel(names: str, takes: str, gives: pa.DataType, kernel: Callable[..., Any]) -> None:
    def run(*arrays: pa.Array) -> pa.Array:
        return kernel(*arrays)

    simple(names, takes, gives, run, arrays=True)


_kernel("upper ucase", "string", TEXT, _of_case(pc.ascii_upper, str.upper))
_kernel("lower lcase", "string", TEXT, _of_case(pc.ascii_lower, str.lower))
_kernel("trim btrim", "string", TEXT, lambda array: pc.utf8_trim(array, " "))
_kernel("ltrim", "string", TEXT, lambda array: pc.utf8_ltrim(array, " "))
_kernel("rtrim", "string", TEXT, lambda array: pc.utf8_rtrim(array, " "))


def _trimming(name: str, kernel: Callable[..., Any]) -> None:
    @function(f"{name}_of", "string, string")
    def build(_: Binding, node: Term, removed: Term) -> Term:
        return with_settings(TEXT, lambda array, some: kernel(array, some) if some else array, node, removed)


for _name, _trim in (("trim", pc.utf8_trim), ("ltrim", pc.utf8_ltrim), ("rtrim", pc.utf8_rtrim)):
    _trimming(_name, _trim)


@function("length len char_length character_length", "text")
def length(_: Binding, node: Term) -> Term:
    kernel = pc.binary_length if node.type == pa.binary() else pc.utf8_length
    return applied(pa.int32(), lambda value: kernel(value).cast(pa.int32()), node)


@function("octet_length", "text")
def octet_length(_: Binding, node: Term) -> Term:
    return applied(pa.int32(), lambda value: pc.binary_length(value).cast(pa.int32()), node)


@function("bit_length", "text")
def bit_length(_: Binding, node: Term) -> Term:
    return applied(
        pa.int32(), lambda value: pc.multiply(pc.binary_length(value).cast(pa.int32()), pa.scalar(8, pa.int32())), node
    )


@function("substring substr", "string, int, int?")
def substring(_: Binding, node: Term, start: Term, count: Term | None = None) -> Term:
    def kernel(array: pa.Array, first: int, length: int = 2**31 - 1) -> pa.Array:
        if length <= 0:
            return pc.utf8_slice_codeunits(array, 0, 0)
        begin = first - 1 if first > 0 else first
        end = begin + length
        if begin >= 0:
            return pc.utf8_slice_codeunits(array, begin, min(end, 2**31 - 1))
        return pc.utf8_slice_codeunits(array, begin, None if end >= 0 else end)

    return with_settings(TEXT, kernel, node, start, *([] if count is None else [count]))


@function("left", "string, int")
def left(_: Binding, node: Term, count: Term) -> Term:
    return with_settings(TEXT, lambda array, n: pc.utf8_slice_codeunits(array, 0, max(n, 0)), node, count)


@function("right", "string, int")
def right(_: Binding, node: Term, count: Term) -> Term:
    def kernel(array: pa.Array, n: int) -> pa.Array:
        return pc.utf8_slice_codeunits(array, -n) if n > 0 else pc.utf8_slice_codeunits(array, 0, 0)

    return with_settings(TEXT, kernel, node, count)


@function("concat", "any*")
def concat(binder: Binding, *given: Term) -> Term:
    if not given:
        return constant(pa.scalar(""))
    if any(pa.types.is_nested(each.type) for each in given):
        from holdfast.expressions.building import joined_arrays

        return joined_arrays(binder, given)
    if all(each.type == pa.binary() for each in given):
        return applied(pa.binary(), lambda *values: pc.binary_join_element_wise(*values, b""), *given)
    nodes = [binder.fitted(each, "string", "an argument of concat") for each in given]
    return applied(TEXT, lambda *values: pc.binary_join_element_wise(*values, ""), *nodes)


@function("concat_ws", "string, any*")
def concat_ws(binder: Binding, separator: Term, *given: Term) -> Term:
    nodes = [binder.fitted(each, "string", "an argument of concat_ws") for each in given]
    if not nodes:
        return applied(TEXT, lambda value: pc.if_else(pc.is_valid(value), "", None), separator)

    def kernel(between: Value, *values: Value) -> pa.Array:
        # PyArrow omits a row in which all values are null.
        nothing = reduce(pc.and_, [pc.is_null(each) for each in values])
        first = pc.if_else(nothing, "", values[0])
        return pc.binary_join_element_wise(first, *values[1:], between, null_handling="skip")

    return applied(TEXT, kernel, separator, *nodes)


def _padding(name: str, kernel: Callable[..., Any]) -> None:
    @function(name, "string, int, string?")
    def build(_: Binding, node: Term, width: Term, fill: Term | None = None) -> Term:
        def padded(array: pa.Array, n: int, pad: str = " ") -> pa.Array:
            n = max(n, 0)
            cut = pc.utf8_slice_codeunits(array, 0, n)
            if len(pad) < 1:
                return cut
            if len(pad) == 1:
                return kernel(cut, n, pad)
            return mapped(cut, lambda text: _filled(text, n, pad, name == "lpad"), TEXT)

        return with_settings(TEXT, padded, node, width, *([] if fill is None else [fill]))


def _filled(text: str, width: int, pad: str, before: bool) -> str:
    room = width - len(text)
    fill = (pad * (room // len(pad) + 1))[:room]
    return fill + text if before else text + fill


_padding("lpad", pc.utf8_lpad)
_padding("rpad", pc.utf8_rpad)


@function("repeat", "string, int")
def repeat(_: Binding, node: Term, count: Term) -> Term:
    return with_settings(TEXT, lambda array, n: pc.binary_repeat(array, max(n, 0)), node, count)


@function("space", "int")
def space(_: Binding, count: Term) -> Term:
    return applied(TEXT, with_arrays(lambda array: mapped(array, lambda n: " " * max(n, 0), TEXT)), count)


@function("reverse", "any")
def reverse(binder: Binding, node: Term) -> Term:
    if pa.types.is_list(node.type):
        import numpy as np

        from holdfast.expressions.lists import list_of, offsets_of, parents_of

        def kernel(array: pa.Array) -> pa.Array:
            offsets, parents = offsets_of(array), parents_of(array)
            places = offsets[parents] + offsets[parents + 1] - 1 - np.arange(len(parents))
            return list_of(offsets, array.flatten().take(pa.array(places)), array.is_null())

        return applied(node.type, with_arrays(kernel), node)
    return applied(TEXT, with_arrays(pc.utf8_reverse), binder.fitted(node, "string", "the argument of reverse"))


@function("replace", "string, string, string?")
def replace(_: Binding, node: Term, search: Term, instead: Term | None = None) -> Term:
    def kernel(array: pa.Array, found: str, other: str = "") -> pa.Array:
        return pc.replace_substring(array, found, other) if found else array

    return with_settings(TEXT, kernel, node, search, *([] if instead is None else [instead]))


@function("translate", "string, string, string")
def translate(_: Binding, node: Term, found: Term, other: Term) -> Term:
    def kernel(array: pa.Array, before: str, after: str) -> pa.Array:
        table: dict[int, str | None] = {}
        for place, each in enumerate(before):
            table.setdefault(ord(each), after[place] if place < len(after) else None)
        return mapped(array, lambda text: text.translate(table), TEXT)

    return with_settings(TEXT, kernel, node, found, other)


@function("startswith", "string, string")
def startswith(_: Binding, node: Term, part: Term) -> Term:
    return with_settings(pa.bool_(), pc.starts_with, node, part)


@function("endswith", "string, string")
def endswith(_: Binding, node: Term, part: Term) -> Term:
    return with_settings(pa.bool_(), pc.ends_with, node, part)


@function("contains", "string, string")
def contains(_: Binding, node: Term, part: Term) -> Term:
    return with_settings(pa.bool_(), pc.match_substring, node, part)


_per_value("instr", "string, string", pa.int32(), lambda text, part: text.find(part) + 1)


@function("locate position", "string, string, int?")
def locate(_: Binding, part: Term, node: Term, start: Term | None = None) -> Term:
    def place(found: str, text: str, first: int = 1) -> int:
        return text.find(found, first - 1) + 1 if first > 0 else 0

    if start is None:
        return applied(pa.int32(), with_arrays(mapping(place, pa.int32())), part, node)
    if start.constant is None or not start.constant.is_valid:
        raise ExpressionRefused("locate: the start has to be a number in expressions")
    return applied(pa.int32(), with_arrays(mapping(place, pa.int32())), part, node, start)


_per_value("ascii", "string", pa.int32(), lambda text: ord(text[0]) if text else 0)
_per_value("chr char", "long", TEXT, lambda n: "" if n < 0 else chr(n & 0xFF))


def _part_of(array: pa.Array, between: str, number: int) -> pa.Array:
    """Return a part of each text, counted from 1, or from the end for negative numbers; empty if there is none."""
    if number == 0 and array.null_count < len(array):
        raise pa.ArrowInvalid("split_part: parts are counted from 1, not 0")
    if not between:
        return array if number in (1, -1) else pc.if_else(array.is_valid(), "", pa.scalar(None, TEXT))
    return part_of(array, between, number)[0]


@function("split_part", "string, string, int")
def split_part(_: Binding, node: Term, separator: Term, place: Term) -> Term:
    may_fail = place.constant is None or place.constant.as_py() == 0
    return with_settings(TEXT, _part_of, node, separator, place, fails=may_fail)


def _substring_index(text: str, between: str, count: int) -> str:
    if not between or not count:
        return ""
    at = -1 if count > 0 else len(text)
    for _ in range(abs(count)):
        at = (
            text.find(between, at + 1)
            if count > 0
            else text.rfind(between, 0, max(at - 1 + len(between), 0))
            if at > 0
            else -1
        )
        if at < 0:
            return text
    return text[:at] if count > 0 else text[at + len(between) :]


_per_value("substring_index", "string, string, int", TEXT, _substring_index)
_per_value(
    "find_in_set",
    "string, string",
    pa.int32(),
    lambda one, texts: 0 if "," in one else (texts.split(",").index(one) + 1 if one in texts.split(",") else 0),
)


def _levenshtein(one: str, other: str) -> int:
    before = list(range(len(other) + 1))
    for row, left_one in enumerate(one, 1):
        now = [row]
        for column, right_one in enumerate(other, 1):
            now.append(min(before[column] + 1, now[-1] + 1, before[column - 1] + (left_one != right_one)))
        before = now
    return before[-1]


_per_value("levenshtein", "string, string", pa.int32(), _levenshtein)


def _url_encoded(text: str) -> str:
    return quote_plus(text, safe="*").replace("~", "%7E")


def _url_decoded(text: str) -> str:
    if re.search("%(?![0-9a-fA-F]{2})", text):
        raise pa.ArrowInvalid(f"url_decode: {text!r} is not encoded")
    return unquote_plus(text)


_per_value("url_encode", "string", TEXT, _url_encoded)
_per_value("url_decode", "string", TEXT, _url_decoded, fails=True)


@function("typeof", "any")
def typeof(_: Binding, node: Term) -> Term:
    if pa.types.is_nested(node.type) or pa.types.is_duration(node.type):
        raise ExpressionRefused(f"typeof of {type_name(node.type)} is not supported in expressions")
    return constant(pa.scalar(type_name(node.type).lower()))


@function("overlay", "string, string, int, int?")
def overlay(_: Binding, node: Term, other: Term, start: Term, count: Term | None = None) -> Term:
    def made(text: str, instead: str, first: int, length: int = -1) -> str:
        length = len(instead) if length < 0 else length
        if first < 1:
            raise pa.ArrowInvalid("overlay: a place before the first character is not supported in expressions")
        return text[: first - 1] + instead + text[first - 1 + length :]

    return applied(
        TEXT, with_arrays(mapping(made, TEXT)), node, other, start, *([] if count is None else [count]), fails=True
    )


@function("elt", "int, string, string*")
def elt(binder: Binding, place: Term, *given: Term) -> Term:
    count, ansi = len(given), binder.settings.ansi

    def kernel(places: pa.Array, *texts: pa.Array) -> pa.Array:
        inside = pc.and_(pc.greater_equal(places, 1), pc.less_equal(places, count))
        if ansi and pc.any(pc.invert(inside)).as_py():
            raise pa.ArrowInvalid(f"elt: expected a number from 1 to {count}")
        return pc.choose(pc.if_else(inside, pc.subtract(places, 1), None).cast(pa.int64()), *texts)

    return applied(TEXT, with_arrays(kernel), place, *given, fails=ansi)


@function("base64", "any")
def base64(binder: Binding, node: Term) -> Term:
    node = cast(binder.fitted(node, "text", "the argument of base64"), pa.binary(), binder.settings)
    return applied(
        TEXT, with_arrays(lambda array: mapped(array, lambda data: base_64.b64encode(data).decode(), TEXT)), node
    )


@function("encode", "string, string")
def encode(binder: Binding, node: Term, charset: Term) -> Term:
    _check_charset(charset, "encode")
    return cast(node, pa.binary(), binder.settings)


@function("decode", "binary, string")
def decode(binder: Binding, node: Term, charset: Term) -> Term:
    _check_charset(charset, "decode")

    def text(data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise pa.ArrowInvalid(f"decode: {data!r} is not UTF-8") from error

    return applied(TEXT, with_arrays(lambda array: mapped(array, text, TEXT)), node, fails=True)


def _check_charset(node: Term, name: str) -> None:
    given = None if node.constant is None else node.constant.as_py()
    if not isinstance(given, str) or given.upper() not in ("UTF-8", "UTF8"):
        raise ExpressionRefused(f"{name}: only 'UTF-8' is supported in expressions, found {given!r}")


__all__ = ["type_name"]
