"""A streaming DataFrame as the source: drivers die before and after an epoch counts, and then a TaskManager dies."""

import signal

import pytest
from kills_pipelines import Shape, check
from kills_processes import DriverProcess

pytestmark = [pytest.mark.kill, pytest.mark.timeout(600)]

COMMITTED = {"stream.epoch.stored": 2, "taskmanager.process.after": 2}
ALL = {"stream.epoch.parts": 3, **COMMITTED}


@pytest.mark.parametrize(
    "points", [COMMITTED, pytest.param(ALL, marks=pytest.mark.long)], ids=["between both commits", "everywhere"]
)
def test_epochs_count_once_whichever_side_is_killed(points, tmp_path):
    """Drivers leave parts that nothing names, and an epoch that Spark has not committed; the last driver goes on."""
    shape = Shape("every", "parquet", rows=3000, rows_per_batch=500, interval_s=0.2, source="stream")
    killed = tmp_path / "killed"
    killed.mkdir()
    armed = {point: f"kill:{killed / point}@{hit}" for point, hit in points.items()}
    codes = []
    for start in range(len(points)):
        with DriverProcess(tmp_path, {tmp_path / "job": shape}, armed=armed, name=f"driver-{start}") as driver:
            codes.append(driver.wait())
            assert codes[-1] in (0, -signal.SIGKILL), driver.text()
    assert codes == [*[-signal.SIGKILL] * (len(points) - 1), 0]
    assert {marker.name for marker in killed.iterdir()} == points.keys()
    check(shape, tmp_path / "job")
