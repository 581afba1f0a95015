"""A program that ends while its query runs: the query is named, ends in order, and its next start goes on."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.journal.fence import journal_numbers, read_record
from holdfast.journal.records import CheckpointRecord
from holdfast.storage.store import open_store

pytestmark = [pytest.mark.kill, pytest.mark.timeout(600)]

PROGRAM = """
import sys
from pyspark.sql import SparkSession
import holdfast as hf

spark = SparkSession.builder.master("local[3]").config("spark.ui.enabled", "false").getOrCreate()
job = hf.Job(spark, name="endless", storage=sys.argv[1], checkpoint=hf.CheckpointConfig(trigger=hf.every("200ms")))
ticks = job.read(hf.SequenceSource(rows_per_second=1000, name="ticks"))
ticks.key_by("value").aggregate(n=hf.count(), name="counts").write(hf.NoopSink(name="nowhere"))
query = job.start()
while not query.totals.checkpoints:
    query.awaitTermination(0.05)
print(query.lastProgress["sources"][0]["startOffset"]["0"])
"""


CTRL_C = """
import os, signal
os.kill(os.getpid(), signal.SIGINT)
query.awaitTermination()
"""


def run_to_the_end(folder: Path, program: str = PROGRAM, code: int = 0) -> tuple[int, str]:
    """The position that the program saw, and its stderr; its exit code has to be `code`."""
    (folder / "program.py").write_text(program)
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_DIRS": str(folder)}
    command = [sys.executable, "program.py", (folder / "storage").as_uri()]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout), done.stderr


def test_a_program_that_ends_says_which_query_still_ran_and_the_next_start_goes_on_until_ctrl_c(tmp_path: Path) -> None:
    """Ctrl-C stops the query in order, and the program says how to go on."""
    _, said = run_to_the_end(tmp_path)
    assert said.count("endless: the program ends while the query still runs") == 1, said
    assert "query.awaitTermination()" in said and "Traceback" not in said and "cannot schedule" not in said
    store = open_store((tmp_path / "storage").as_uri())
    newest = read_record(store, max(journal_numbers(store)))
    assert isinstance(newest, CheckpointRecord)
    position, said = run_to_the_end(tmp_path, PROGRAM + CTRL_C, code=-signal.SIGINT)
    assert position >= newest.offsets["ticks"]["0"] > 0
    assert said.count("endless: interrupted by Ctrl-C: the query is stopped in order") == 1, said
    assert "Start the program again on the same storage" in said and "awaitTermination() to wait" not in said
    assert isinstance(read_record(store, max(journal_numbers(store))), CheckpointRecord)


SIGTERM = """
import os, signal
before = query.totals.rows
while query.totals.rows == before:
    query.awaitTermination(0.05)
os.kill(os.getpid(), signal.SIGTERM)
query.awaitTermination()
"""


def test_sigterm_takes_a_last_checkpoint_although_the_next_is_far_away(tmp_path: Path) -> None:
    program = PROGRAM.replace('hf.every("200ms")', 'hf.every("1h")').replace(
        "while not query.totals.checkpoints", "while not query.totals.rows"
    )
    position, said = run_to_the_end(tmp_path, program + SIGTERM, code=-signal.SIGTERM)
    assert said.count("endless: SIGTERM: the query takes a last checkpoint and is stopped") == 1, said
    store = open_store((tmp_path / "storage").as_uri())
    checkpoints = [
        each
        for each in (read_record(store, number) for number in sorted(journal_numbers(store)))
        if isinstance(each, CheckpointRecord)
    ]
    assert checkpoints and checkpoints[-1].offsets["ticks"]["0"] > position
