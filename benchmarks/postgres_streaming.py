"""A large transaction of PostgreSQL, told at its end (protocol 1) or while it is written (2): seconds until it is read.

    python -m benchmarks.postgres_streaming [--rows 300000] [--work-mem 4MB]

A bare reader of the slot, without Holdfast: the difference is the most that streaming could gain.
"""

import argparse
import json
import select
import threading
import time
from contextlib import closing
from typing import Any

import psycopg2
import psycopg2.extras

from examples.revenue.postgres import LocalPostgres

END = b"the end"
WAIT_S_MAX = 300.0


class SlotRead(threading.Thread):
    """Reads a slot until a logical message says that it is the end."""

    def __init__(self, server: LocalPostgres, slot: str, version: int, work_mem: str) -> None:
        super().__init__(daemon=True)
        kind = psycopg2.extras.LogicalReplicationConnection
        memory = f"-c logical_decoding_work_mem={work_mem}"
        self.connection = psycopg2.connect(server.dsn, connection_factory=kind, options=memory)
        self.cursor = self.connection.cursor()
        options = {"proto_version": str(version), "publication_names": "streaming", "messages": "true"}
        if version > 1:
            options["streaming"] = "true"
        self.cursor.start_replication(slot_name=slot, decode=False, options=options, status_interval=3600)
        self.messages = 0
        self.ended_s = 0.0
        self.start()

    def run(self) -> None:
        while True:
            message: Any = self.cursor.read_message()
            if message is None:
                select.select([self.connection], [], [], 0.05)
                continue
            self.messages += 1
            if message.payload[:1] == b"M" and END in message.payload:
                self.ended_s = time.monotonic()
                return


def measured(server: LocalPostgres, version: int, rows: int, work_mem: str, commits: bool) -> dict[str, Any]:
    """Write a transaction, and return how long it took and how long after its end everything was read."""
    slot = f"streaming_{version}_{commits}".lower()
    server.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
    reading = SlotRead(server, slot, version, work_mem)
    began_s = time.monotonic()
    with closing(psycopg2.connect(server.dsn)) as writing, writing.cursor() as cursor:
        cursor.execute("INSERT INTO many SELECT g, g %% 1000, g / 7.0 FROM generate_series(1, %s) g", (rows,))
        if commits:
            writing.commit()
        else:
            writing.rollback()
    written_s = time.monotonic()
    server.execute("SELECT pg_logical_emit_message(false, 'benchmark', %s)", (END.decode(),))
    reading.join(WAIT_S_MAX)
    reading.connection.close()
    server.execute("SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE active_pid > 0")
    server.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
    server.execute("TRUNCATE many")
    return {
        "version": version,
        "commits": commits,
        "write_s": round(written_s - began_s, 2),
        "read_after_s": round(reading.ended_s - written_s, 2),
        "messages": reading.messages,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--work-mem", default="4MB")
    options = parser.parse_args()
    server = LocalPostgres(shared_buffers="256MB").start()
    try:
        server.execute(
            "CREATE TABLE many (id bigint PRIMARY KEY, customer int, amount numeric(12,2)); "
            "ALTER TABLE many REPLICA IDENTITY FULL; CREATE PUBLICATION streaming FOR TABLE many"
        )
        for commits in (True, True, False):
            for version in (1, 2):
                print(json.dumps(measured(server, version, options.rows, options.work_mem, commits)))
    finally:
        server.stop()


if __name__ == "__main__":
    main()
