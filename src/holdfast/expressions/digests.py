"""Digests and hashes of values, with Spark's seeds."""

import hashlib
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.expressions.conversions import cast
from holdfast.expressions.hashing import murmur3, xxhash64
from holdfast.expressions.mapping import mapped, with_settings
from holdfast.expressions.nodes import Binding, ExpressionRefused, Term, applied, with_arrays
from holdfast.expressions.table import function
from holdfast.expressions.types import INSTANT, LOCAL, is_integer, type_name


def _digest(names: str, fn: Callable[[bytes], Any], kind: pa.DataType) -> None:
    @function(names, "text")
    def build(binder: Binding, node: Term) -> Term:
        node = cast(node, pa.binary(), binder.settings)
        return applied(kind, with_arrays(lambda array: mapped(array, fn, kind)), node)


_digest("md5", lambda data: hashlib.md5(data, usedforsecurity=False).hexdigest(), pa.string())
_digest("sha sha1", lambda data: hashlib.sha1(data, usedforsecurity=False).hexdigest(), pa.string())
_digest("crc32", zlib.crc32, pa.int64())


@function("sha2", "text, int")
def sha2(binder: Binding, node: Term, bits: Term) -> Term:
    node = cast(node, pa.binary(), binder.settings)

    def kernel(array: pa.Array, length: int) -> pa.Array:
        name = {0: "sha256", 224: "sha224", 256: "sha256", 384: "sha384", 512: "sha512"}.get(length)
        if name is None:
            return pa.nulls(len(array), pa.string())
        return mapped(array, lambda data: hashlib.new(name, data).hexdigest(), pa.string())

    return with_settings(pa.string(), kernel, node, bits)


def _hashing(name: str, kernel: Any, kind: pa.DataType) -> None:
    @function(name, "any, any*")
    def build(_: Binding, *given: Term) -> Term:
        for node in given:
            known = is_integer(node.type) or pa.types.is_floating(node.type)
            known = known or node.type in (pa.bool_(), pa.string(), pa.binary(), pa.date32(), INSTANT, LOCAL, pa.null())
            if not known:
                raise ExpressionRefused(
                    f"{name} of {type_name(node.type)} is not supported in expressions; use transform(…)"
                )

        def run(*arrays: pa.Array) -> pa.Array:
            found = np.full(len(arrays[0]), 42, np.uint32 if kind == pa.int32() else np.uint64)
            for array in arrays:
                hashed = kernel(array, found)
                found = np.where(array.is_valid().to_numpy(zero_copy_only=False), hashed, found)
            return pa.array(found.view(np.int32 if kind == pa.int32() else np.int64))

        return applied(kind, with_arrays(run), *given)


_hashing("hash", murmur3, pa.int32())
_hashing("xxhash64", xxhash64, pa.int64())

__all__ = ["pc"]
