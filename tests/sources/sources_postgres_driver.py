"""A driver that keeps copies of tables until it is killed: DSN, slot, publication, folder, snapshot, truncate, Spark's
master ("": without Spark), tables."""

import logging
import sys
from pathlib import Path

from sources_postgres_server import job_of

import holdfast as hf
from holdfast.testing.run import start


def main() -> None:
    dsn, slot, publication, folder, snapshot, truncate, master, *tables = sys.argv[1:]
    logging.basicConfig(level=logging.INFO)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    source = hf.PostgresCdcSource(dsn, slot, publication, tables, snapshot=snapshot, chunk_rows=50, truncate=truncate)
    # Retained, so that whoever looks at the records finds each of them.
    config = hf.CheckpointConfig(trigger=hf.every("20ms"), retained=20)
    settings = {"checkpoint": config, "max_rows_per_batch": 5_000 if master else 200}
    if master:
        from kills_driver import session

        job = job_of(source, tables, Path(folder), session(master), senders=2, parallelism=1, **settings)
        job.start(trigger=hf.processing_time("10ms")).awaitTermination()
    else:
        start(job_of(source, tables, Path(folder), **settings), hf.processing_time("10ms")).awaitTermination()


if __name__ == "__main__":
    main()
