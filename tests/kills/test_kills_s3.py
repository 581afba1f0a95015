"""A job on a store that speaks S3: its TaskManager and its driver are killed, and nothing is lost or there twice."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from kills_pipelines import Shape, check
from kills_processes import DriverProcess
from moto.server import ThreadedMotoServer

from holdfast.maintenance.verify import verify
from holdfast.storage import names
from holdfast.storage.store import open_store

pytestmark = [pytest.mark.kill, pytest.mark.long, pytest.mark.timeout(300)]

BUCKET = "holdfast-kills"
KILLS = {"taskmanager.commit.between": 3, "jobmaster.record.after": 2}
"""A TaskManager in the middle of a commit; the driver between a checkpoint and anybody who knows of it."""


@pytest.fixture
def options() -> Iterator[dict[str, str]]:
    """A bucket, and the options to reach it, also from the processes of a driver."""
    proxies = {name: os.environ.pop(name) for name in list(os.environ) if name.lower() in ("http_proxy", "https_proxy")}
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    endpoint = f"http://127.0.0.1:{server.get_host_and_port()[1]}"
    keys = {"aws_access_key_id": "id", "aws_secret_access_key": "secret"}
    boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **keys).create_bucket(Bucket=BUCKET)
    yield {**keys, "aws_region": "us-east-1", "aws_endpoint": endpoint, "allow_http": "true"}
    server.stop()
    os.environ.update(proxies)


def test_a_job_on_s3_outlives_its_task_manager_and_its_driver(tmp_path: Path, options: dict[str, str]) -> None:
    shape = Shape("every", "parquet", rows=16_000, keys=2000, rows_per_batch=2000, interval_s=0.2, log_handles_max=2)
    url = f"s3://{BUCKET}/job"
    settings = {"storage": url, "storage_options": options}
    killed = tmp_path / "killed"
    killed.mkdir()
    armed = {point: f"kill:{killed / point}@{hit}" for point, hit in KILLS.items()}
    for start in range(len(KILLS) + 1):
        with DriverProcess(
            tmp_path, {tmp_path / "job": shape}, armed=armed, name=f"driver-{start}", settings=settings
        ) as driver:
            code = driver.wait()
            assert code in (0, -signal.SIGKILL), driver.text()
        if code == 0:
            break
    check(shape, tmp_path / "job")
    assert {marker.name for marker in killed.iterdir()} == KILLS.keys()
    store = open_store(url, options)
    report = verify(store)
    assert report.ok, report.problems
    assert report.epoch > 1 and report.read["changelog objects"].objects + report.read["materialized objects"].objects
    left = [info.name for info in store.list("") if names.epoch_of(info.name) not in (None, report.epoch)]
    assert {name.partition("/")[0] for name in left} <= {"dstl", "shared", "gathered"}, "an older epoch left more"
