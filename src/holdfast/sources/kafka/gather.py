"""Copying of librdkafka's messages into Arrow buffers, without the interpreter: compiled loops over addresses.

`rd_kafka_message_t`, 64 bit, part of librdkafka's stable interface:

    0 err (int32)   8 topic   16 partition (int32)   24 payload   32 its length   40 key   48 its length   56 offset
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.state.compiled import copy_bytes, intrinsic, kernel, load_u32, load_u64

PAYLOAD, KEY = 24, 40

Addresses = npt.NDArray[np.uint64]
Int64s = npt.NDArray[np.int64]


def _call(typing_context: Any, function: Any, first: Any, second: Any) -> Any:
    from llvmlite import ir  # type: ignore[import-untyped]
    from numba import types

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(64)
        pointer = builder.inttoptr(arguments[0], ir.FunctionType(word, [word, word]).as_pointer())
        return builder.call(pointer, [arguments[1], arguments[2]])

    return types.int64(types.uintp, types.uintp, types.uintp), generate


call: Any = intrinsic(_call)
"""Call the C function at an address with two words. For kernels only."""


@kernel
def errors_and_offsets(messages: Any, errors: Any, offsets: Any) -> None:
    for i in range(len(messages)):
        errors[i] = np.int32(load_u32(messages[i]))
        offsets[i] = np.int64(load_u64(messages[i] + np.uint64(56)))


@kernel
def lengths_of(messages: Any, field: Any, lengths: Any) -> None:
    """Set the length of a field of each message; -1 for a null."""
    for i in range(len(messages)):
        address = load_u64(messages[i] + np.uint64(field))
        lengths[i] = -1 if address == 0 else np.int64(load_u64(messages[i] + np.uint64(field + 8)))


@kernel
def copy_fields(messages: Any, field: Any, offsets: Any, target: Any) -> None:
    for i in range(len(messages)):
        length = offsets[i + 1] - offsets[i]
        if length > 0:
            copy_bytes(load_u64(messages[i] + np.uint64(field)), target + np.uint64(offsets[i]), length)


@kernel
def timestamps_of(messages: Any, function: Any, scratch: Any, times: Any) -> None:
    for i in range(len(messages)):
        times[i] = call(function, messages[i], scratch)


@kernel
def destroy_all(messages: Any, function: Any) -> None:
    for i in range(len(messages)):
        call(function, messages[i], np.uint64(0))


def facts(messages: Addresses) -> tuple[Int64s, Int64s]:
    """Return the error codes and the offsets of messages."""
    errors, offsets = np.empty(len(messages), np.int64), np.empty(len(messages), np.int64)
    errors_and_offsets(messages, errors, offsets)
    return errors, offsets


def binary_array(messages: Addresses, field: int) -> pa.Array:
    """Copy a field (`PAYLOAD`, `KEY`) of messages into an array."""
    count = len(messages)
    lengths = np.empty(count, np.int64)
    lengths_of(messages, field, lengths)
    nulls = lengths < 0
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(np.where(nulls, 0, lengths), out=offsets[1:])
    data = np.empty(int(offsets[-1]), np.uint8)
    copy_fields(messages, field, offsets, np.uint64(data.ctypes.data))
    validity = pa.py_buffer(np.packbits(~nulls, bitorder="little")) if nulls.any() else None
    return pa.Array.from_buffers(pa.binary(), count, [validity, pa.py_buffer(offsets), pa.py_buffer(data)])
