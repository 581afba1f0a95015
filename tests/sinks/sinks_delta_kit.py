"""A Delta table in a folder, and what a JobMaster does with a sink into it."""

from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
from deltalake import DeltaTable

from holdfast.sinks.base import PublishContext, SinkContext, StageContext
from holdfast.sinks.delta.delta_sink import DeltaSink
from holdfast.storage.store import ObjectStore, open_store

JOB = "0123456789abcdef0123456789abcdef"
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
CHANGES = SCHEMA.append(pa.field("_change_type", pa.string()))


class Target:
    """A Delta table in a folder, and what a JobMaster does with a sink into it."""

    def __init__(self, folder: Path, schema: pa.Schema = SCHEMA, name: str = "out", **settings: Any) -> None:
        self.folder, self.schema, self.name = folder, schema, name
        self.settings = {"keys": ("k",)} | settings if settings.get("mode") == "upsert" else settings
        self.store: ObjectStore = open_store(f"memory://{uuid4().hex}")
        self.sink = DeltaSink(folder.as_uri(), **self.settings)
        self.sink.prepare(schema, SinkContext(JOB, name, self.store))

    def stage(self, *found: dict[str, Any], unit: int = 0, schema: pa.Schema | None = None) -> list[bytes]:
        batch = pa.RecordBatch.from_pylist(list(found), schema=schema or self.schema)
        return self.sink.stage(iter([batch]), StageContext(JOB, self.name, 1, 1, 1, unit, uuid4().hex, self.store))

    def publish(self, number: int, group: list[bytes]) -> None:
        DeltaSink(self.folder.as_uri(), **self.settings).publish(
            number, group, PublishContext(JOB, self.name, self.store, self.schema)
        )

    @property
    def table(self) -> DeltaTable:
        return DeltaTable(self.folder)

    def rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.table.to_pyarrow_table().to_pylist()
        return sorted(found, key=repr)

    def pairs(self) -> list[tuple[Any, ...]]:
        return sorted((tuple(row.values()) for row in self.rows()), key=repr)


def row(k: int | None, v: str | None = None, change: str | None = None) -> dict[str, Any]:
    return {"k": k, "v": v} | ({} if change is None else {"_change_type": change})
