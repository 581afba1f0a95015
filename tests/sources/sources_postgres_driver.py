"""A driver that keeps copies of tables until it is killed: DSN, slot, publication, folder, snapshot, tables."""

import logging
import sys
from pathlib import Path

from sources_postgres_server import job_of

import holdfast as hf
from holdfast.testing.run import start


def main() -> None:
    dsn, slot, publication, folder, snapshot, *tables = sys.argv[1:]
    logging.basicConfig(level=logging.INFO)
    source = hf.PostgresCdcSource(dsn, slot, publication, tables, snapshot=snapshot, chunk_rows=50, truncate="ignore")
    config = hf.CheckpointConfig(trigger=hf.every("20ms"))
    job = job_of(source, tables, Path(folder), checkpoint=config, max_rows_per_batch=200)
    start(job, hf.processing_time("10ms")).awaitTermination()


if __name__ == "__main__":
    main()
