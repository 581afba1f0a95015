"""The count in Pathway, with persistence; rows may come twice. Arguments: the broker's address and a folder."""

import sys

import pathway as pw

SERVERS, FOLDER = sys.argv[1:]
SETTINGS = {"bootstrap.servers": SERVERS, "group.id": "counts", "auto.offset.reset": "earliest"}


class Row(pw.Schema):
    k: int
    at: int


rows = pw.io.kafka.read(SETTINGS, topic="in", schema=Row, format="json", autocommit_duration_ms=50, name="rows")
counts = rows.groupby(pw.this.k).reduce(pw.this.k, n=pw.reducers.count(), at=pw.reducers.max(pw.this.at))
pw.io.kafka.write(counts, SETTINGS, topic_name="out", format="json")
backend = pw.persistence.Backend.filesystem(FOLDER)
pw.run(
    monitoring_level=pw.MonitoringLevel.NONE,
    persistence_config=pw.persistence.Config(backend, snapshot_interval_ms=100),
)
