"""Few rows, of several streams or outputs together, in the body of a single call.

    push   streams of a unit to a TaskManager ───all small───► a call with `StreamPart`s, else a DoPut for each
    pull   outputs that an order takes from it ──each small──► an answer with `SmallOutput`s, else a DoGet for each

A stream of Flight costs either side some 0.3 ms, however few rows it carries, and a batch of a quiet job has a stream
for each operator and each output. Rows are Arrow's messages (a schema, a record batch); nothing is unpickled.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache

import msgspec
import pyarrow as pa

from holdfast.ids import BatchNumber, RunNumber
from holdfast.protocol.taskmanager import SectionRows, StreamTag

PARCEL_BYTES_MAX = 256 * 1024
"""Most bytes of rows in the body of a call; more rows go as streams. A higher value saves calls for batches of medium
size, and needs more memory: a sender may hold that much for each TaskManager."""
SCHEMAS_KEPT_MAX = 1024
"""Most decoded schemas that a process caches."""


class StreamPart(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Some rows of a stream of a sender's attempt. Its parts belong to the subtasks of `sections`, in order."""

    tag: StreamTag
    sections: list[SectionRows]
    schema: bytes
    rows: bytes

    @classmethod
    def of(cls, tag: StreamTag, sections: list[SectionRows], rows: pa.RecordBatch) -> "StreamPart":
        return cls(tag, sections, _encoded_schema(rows.schema), rows.serialize().to_pybytes())

    def batch(self) -> pa.RecordBatch:
        """Decode the rows."""
        return _decoded(self.rows, self.schema)


class SmallOutput(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """All rows of one output of a subtask in a batch, in order."""

    schema: bytes
    batches: list[bytes]

    @classmethod
    def of(cls, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> "SmallOutput":
        return cls(_encoded_schema(schema), [each.serialize().to_pybytes() for each in batches])

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return (_decoded(each, self.schema) for each in self.batches)


class OutputsRequest(msgspec.Struct, frozen=True, array_like=True):
    """A request for outputs of a batch, each named by operator and subtask."""

    run: RunNumber
    batch: BatchNumber
    outputs: list[tuple[str, int]]


def size_of(batches: Iterable[pa.RecordBatch]) -> int:
    """Return the bytes that record batches take in a body."""
    return sum(pa.ipc.get_record_batch_size(each) for each in batches)


def _encoded_schema(schema: pa.Schema) -> bytes:
    found: bytes = schema.serialize().to_pybytes()
    return found


@lru_cache(SCHEMAS_KEPT_MAX)
def _decoded_schema(schema: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(schema))


def _decoded(rows: bytes, schema: bytes) -> pa.RecordBatch:
    return pa.ipc.read_record_batch(pa.py_buffer(rows), _decoded_schema(schema))
