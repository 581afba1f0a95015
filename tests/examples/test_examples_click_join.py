"""The example of an event-time join, on fewer rows: in process, and on Spark with a kill of a real process."""

import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import holdfast as hf
from examples.click_join import counted, directly, samples_job, write_input
from holdfast.testing import start
from holdfast.testing.local import LocalCluster
from waiting import until

ROOT = Path(__file__).resolve().parents[2]


def test_samples_are_those_of_a_direct_join_though_a_task_manager_is_lost(tmp_path: Path) -> None:
    late = write_input(tmp_path, 1_500, seed=1)
    clusters: list[LocalCluster] = []
    job = samples_job(None, tmp_path, 1_500)
    query = start(job, hf.available_now(drain=True), on_cluster=clusters.append)
    until(lambda: query.totals.batches > 1)
    clusters[0].kill(1)
    query.awaitTermination()
    assert len(query.restarts) == 1
    assert counted(pq.read_table(tmp_path / "samples")) == directly(tmp_path)
    assert pq.read_table(tmp_path / "too-late").num_rows == late > 0


@pytest.mark.kill
@pytest.mark.long
@pytest.mark.timeout(400)
def test_samples_are_those_of_a_direct_join_though_a_task_manager_is_killed() -> None:
    command = [sys.executable, "-m", "examples.click_join", "--rows", "20000", "--kill"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
    assert ran.stdout.count("kill -9") == 1
    assert "Equal to a direct join" in ran.stdout
