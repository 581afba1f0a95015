"""Stores under test. The S3 protocol is spoken by moto's server, in this process."""

import os
import threading
import uuid
from collections.abc import Callable, Iterator

import pytest

from holdfast.storage.store import ObjectStore, open_store

BUCKET = "holdfast-tests"
CREDENTIALS = {"aws_access_key_id": "an-access-key", "aws_secret_access_key": "a-secret-key"}


@pytest.fixture(scope="session")
def s3_options() -> Iterator[dict[str, str]]:
    """A bucket called `BUCKET`, and the options to reach it."""
    import boto3
    from moto.s3.responses import S3Response
    from moto.server import ThreadedMotoServer

    put_object, one_at_a_time = S3Response.put_object, threading.Lock()

    def put_atomically(response: S3Response) -> object:
        # moto looks whether the object is there and then puts it, unlike S3 with other puts in between.
        with one_at_a_time:
            return put_object(response)

    S3Response.put_object = put_atomically  # type: ignore[method-assign]
    proxies = {name: os.environ.pop(name) for name in list(os.environ) if name.lower() in ("http_proxy", "https_proxy")}
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **CREDENTIALS).create_bucket(Bucket=BUCKET)
    yield {
        **CREDENTIALS,
        "aws_region": "us-east-1",
        "aws_endpoint": endpoint,
        "allow_http": "true",
        "aws_virtual_hosted_style_request": "false",
    }
    server.stop()
    os.environ.update(proxies)


@pytest.fixture(scope="session")
def hdfs_address() -> Iterator[str]:
    """Host and port of the NameNode of a real HDFS."""
    from hdfs_kit import hdfs

    with hdfs() as running:
        yield running.address


@pytest.fixture(params=["file", "memory", "s3", pytest.param("hdfs", marks=pytest.mark.long)])
def open_again(request: pytest.FixtureRequest, tmp_path: object) -> Callable[[], ObjectStore]:
    """Opens the same fresh store each time it is called."""
    folder = uuid.uuid4().hex
    if request.param == "file":
        return lambda: open_store(f"file://{tmp_path}/a store/{folder}")
    if request.param == "memory":
        return lambda: open_store(f"memory://{folder}")
    if request.param == "hdfs":
        address = request.getfixturevalue("hdfs_address")
        return lambda: open_store(f"hdfs://{address}/{folder}/a store")
    options = request.getfixturevalue("s3_options")
    return lambda: open_store(f"s3://{BUCKET}/{folder}", options)


@pytest.fixture
def store(open_again: Callable[[], ObjectStore]) -> ObjectStore:
    return open_again()
