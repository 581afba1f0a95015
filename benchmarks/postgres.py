"""PostgreSQL's changes into a keyed count and into an upserted Delta table, beside `pg_recvlogical` to nowhere.

    python -m benchmarks.postgres --json [--rows 1000000]

A server of its own is started. The stream's rows are there before the reading begins: all figures are of catching up.
`known` is with truncate="delete", whose state holds every row. A single process holds driver, TaskManager and senders.
Lag is from a commit under `pgbench`'s load to its row's processing.
"""

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import holdfast as hf
from examples.revenue.postgres import LocalPostgres
from holdfast.testing import run
from holdfast.testing.run import start

TABLE = "public.orders"


class Bench:
    """A server with a table of orders, and runs of jobs on it."""

    def __init__(self, folder: Path, rows: int) -> None:
        self.folder = folder
        self.rows = rows
        self.server = LocalPostgres(shared_buffers="256MB").start()
        self._runs = 0
        self.server.execute(
            f"CREATE TABLE {TABLE} (id bigint PRIMARY KEY, customer int, amount numeric(12,2), status text, "
            f"at timestamptz DEFAULT now()); ALTER TABLE {TABLE} REPLICA IDENTITY FULL; "
            f"CREATE PUBLICATION orders FOR TABLE {TABLE}"
        )

    def insert(self, first: int, rows: int) -> None:
        """Insert rows in transactions of 1,000."""
        import psycopg2

        connection = psycopg2.connect(self.server.dsn)
        with connection.cursor() as cursor:
            for at in range(first, first + rows, 1000):
                cursor.execute(
                    f"INSERT INTO {TABLE} SELECT g, g %% 1000, g / 7.0, 'paid' FROM generate_series(%s, %s) g",
                    (at, min(at + 1000, first + rows) - 1),
                )
                connection.commit()
        connection.close()

    def slot(self, name: str) -> None:
        self.server.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (name,))

    def job(self, slot: str, sink: str, snapshot: str) -> hf.Job:
        self._runs += 1
        truncate = "delete" if sink == "known" else "fail"
        source = hf.PostgresCdcSource(self.server.dsn, slot, "orders", [TABLE], snapshot=snapshot, truncate=truncate)
        job = hf.Job(None, name="bench", storage=f"file://{self.folder}/job{self._runs}", max_rows_per_batch=500_000)
        rows = job.read(source.table(TABLE))
        if sink == "count":
            counted = rows.map_batches(_customers, "customer INT")
            counted.key_by("customer").aggregate(n=hf.count()).write(hf.NoopSink())
        elif sink == "known":
            rows.write(hf.NoopSink())
        else:
            rows.write(hf.DeltaSink(f"file://{self.folder}/delta{self._runs}", mode="upsert", keys=["id"]))
        return job

    def timed(self, job: hf.Job) -> float:
        """Run a job over everything that is there, and return the seconds it took."""
        began_s = time.monotonic()
        run(job)
        return time.monotonic() - began_s

    def recvlogical(self, slot: str) -> float:
        """Read the slot's changes to nowhere; return the seconds until its end is reached."""
        end = self.server.execute("SELECT pg_current_wal_lsn()::text")[0][0]
        host, port, user, database = (part.split("=")[1] for part in self.server.dsn.split())
        command = [self.server.program("pg_recvlogical"), "-h", host, "-p", port, "-U", user, "-d", database]
        command += ["-S", slot, "--start", "--endpos", end, "-f", "/dev/null", "-o", "proto_version=1"]
        command += ["-o", "publication_names=orders"]
        began_s = time.monotonic()
        self.server.execute("SELECT pg_logical_emit_message(false, 'end', '')")
        subprocess.run(command, check=True, timeout=600)
        return time.monotonic() - began_s

    def lag(self, seconds: int) -> list[float]:
        """Return the milliseconds from commits under load until the rows have been processed."""
        lags: list[float] = []
        self.slot("lag")
        source = hf.PostgresCdcSource(self.server.dsn, "lag", "orders", [TABLE], snapshot="never")
        job = hf.Job(None, name="lag", storage=f"file://{self.folder}/lag")
        job.read(source.table(TABLE)).map_batches(lambda rows: _note(rows, lags), "ms DOUBLE").write(hf.NoopSink())
        script = self.folder / "load.sql"
        script.write_text(f"\\set c random(1, 1000)\nINSERT INTO {TABLE} VALUES (-nextval('load'), :c, 1.5, 'new');\n")
        self.server.execute("CREATE SEQUENCE load")
        script.chmod(0o644)
        query = start(job, hf.processing_time("10ms"))
        load = [self.server.program("pgbench"), "-n", "-f", str(script), "-T", str(seconds), "-R", "500", "-c", "2"]
        host, port, user, database = (part.split("=")[1] for part in self.server.dsn.split())
        done = subprocess.run(
            [*load, "-h", host, "-p", port, "-U", user, database], check=True, capture_output=True, timeout=600
        )
        assert done.returncode == 0
        query.stop()
        return lags


def _customers(rows):
    return rows.select(["customer"])


def _note(rows, lags):
    import pyarrow as pa

    now_us = time.time_ns() // 1000
    found = [(now_us - each) / 1000 for each in rows.column("_commit_time").cast(pa.int64()).to_pylist()]
    lags.extend(found)
    return pa.record_batch({"ms": pa.array(found)})


def measured(folder: Path, rows: int) -> dict[str, float]:
    bench = Bench(folder, rows)
    try:
        bench.insert(0, 1000)
        bench.timed(bench.job("warm", "count", "initial"))  # compiles kernels
        bench.insert(1000, rows)
        snapshot_s = bench.timed(bench.job("snap", "count", "initial"))
        snapshot_delta_s = bench.timed(bench.job("snapdelta", "delta", "initial"))
        for name in ("plain", "count", "delta", "known"):
            bench.slot(name)
        bench.insert(10_000_000, rows)
        plain_s = bench.recvlogical("plain")
        stream_s = bench.timed(bench.job("count", "count", "never"))
        delta_s = bench.timed(bench.job("delta", "delta", "never"))
        known_s = bench.timed(bench.job("known", "known", "never"))
        lags = bench.lag(8)
        return {
            "rows": rows,
            "snapshot_rows_per_s": round((rows + 1000) / snapshot_s),
            "snapshot_delta_rows_per_s": round((rows + 1000) / snapshot_delta_s),
            "stream_rows_per_s": round(rows / stream_s),
            "stream_delta_rows_per_s": round(rows / delta_s),
            "stream_known_rows_per_s": round(rows / known_s),
            "recvlogical_rows_per_s": round(rows / plain_s),
            "stream_ratio": round(plain_s / stream_s, 3),
            "lag_ms_p50": round(statistics.median(lags), 1),
            "lag_ms_p99": round(sorted(lags)[int(len(lags) * 0.99)], 1),
        }
    finally:
        bench.server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rows", type=int, default=500_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        found = measured(Path(folder), options.rows)
    print(json.dumps(found) if options.json else "\n".join(f"{name}: {value:,}" for name, value in found.items()))


if __name__ == "__main__":
    main()
