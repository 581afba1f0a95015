"""A streaming DataFrame as the source: drivers die before and after an epoch counts, and then a TaskManager dies."""

import signal

import pytest
from kills_pipelines import Shape, check
from kills_processes import DriverProcess

pytestmark = [pytest.mark.kill, pytest.mark.timeout(600)]

POINTS = {"stream.epoch.parts": 3, "stream.epoch.stored": 2, "taskmanager.process.after": 2}


def test_epochs_count_once_whichever_side_is_killed(tmp_path):
    """The first driver leaves parts that nothing names, the second an epoch that Spark has not committed."""
    shape = Shape("every", "parquet", rows=3000, rows_per_batch=500, interval_s=0.2, source="stream")
    killed = tmp_path / "killed"
    killed.mkdir()
    points = {point: f"kill:{killed / point}@{hit}" for point, hit in POINTS.items()}
    codes = []
    for start in range(3):
        with DriverProcess(tmp_path, {tmp_path / "job": shape}, armed=points, name=f"driver-{start}") as driver:
            codes.append(driver.wait())
            assert codes[-1] in (0, -signal.SIGKILL), driver.text()
    assert codes == [-signal.SIGKILL, -signal.SIGKILL, 0]
    assert {marker.name for marker in killed.iterdir()} == POINTS.keys()
    check(shape, tmp_path / "job")
