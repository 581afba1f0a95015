"""A store that does not answer is given up soon, with a reason; a store that answers is fine, empty or not."""

import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from uuid import uuid4

import obstore
import pytest
from obstore.exceptions import GenericError

import holdfast as hf
from holdfast.errors import StorageError
from holdfast.storage.reach import check_reachable
from holdfast.storage.store import open_store
from holdfast.testing import TestSource, run

CREDENTIALS = {"aws_access_key_id": "an-access-key", "aws_secret_access_key": "a-secret-key"}
BUCKET = "holdfast-tests"
"""The one that `s3_options` makes."""


@pytest.fixture
def silent() -> Iterator[str]:
    """Takes connections, and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def full() -> Iterator[str]:
    """Takes no connection any more, as a host behind a firewall does: clients hear nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        port = server.getsockname()[1]
        waiting = [socket.socket() for _ in range(3)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(("127.0.0.1", port))
        yield f"http://127.0.0.1:{port}"
        for each in waiting:
            each.close()


def refused() -> str:
    return "http://127.0.0.1:1"


def options(endpoint: str, **more: str) -> dict[str, str]:
    return {**CREDENTIALS, "aws_region": "us-east-1", "aws_endpoint": endpoint, "allow_http": "true", **more}


REASONS: dict[str, tuple[str, dict[str, str]]] = {
    "refused": ("the connection was refused", {}),
    "full": ("no connection in time", {"connect_timeout": "200ms"}),
    "silent": ("no answer in time", {"timeout": "200ms"}),
}


@pytest.mark.parametrize("how", REASONS)
def test_a_store_out_of_reach_is_given_up_with_the_reason(how: str, request: pytest.FixtureRequest) -> None:
    endpoint = refused() if how == "refused" else request.getfixturevalue(how)
    reason, shorter = REASONS[how]
    with pytest.raises(StorageError, match=rf"s3://bucket/x.*\({reason}\).*check its URL") as caught:
        check_reachable("s3://bucket/x", options(endpoint, **shorter))
    assert CREDENTIALS["aws_secret_access_key"] not in str(caught.value)


@pytest.mark.parametrize("timer", ['ConnectError("tcp connect error", Elapsed(()))', "TimedOut"])
def test_whichever_of_two_timers_gives_up_a_connection_the_reason_is_the_same(
    timer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = f"HttpError {{ kind: Timeout, source: hyper_util::client::legacy::Error(\n    Connect,\n    {timer}"

    def fails(*_: object, **__: object) -> None:
        raise GenericError(f"error sending request\n\nDebug source:\n{source}")

    monkeypatch.setattr(obstore, "list", fails)
    with pytest.raises(StorageError, match=r"\(no connection in time\)"):
        open_store("s3://bucket/x", options("http://127.0.0.1:1")).list("journal/")


def test_a_job_on_a_store_out_of_reach_is_not_started(silent: str) -> None:
    job = hf.Job(None, name="x", storage="s3://bucket/x", storage_options=options(silent, timeout="200ms"))
    job.read(TestSource([[{"k": 1}]], "k BIGINT")).write(hf.NoopSink())
    with pytest.raises(StorageError, match="no answer in time"):
        run(job)


@pytest.mark.parametrize("objects", [0, 3])
def test_a_store_that_answers_is_fine(s3_options: dict[str, str], objects: int) -> None:
    url = f"s3://{BUCKET}/{uuid4().hex}"
    for number in range(objects):
        open_store(url, s3_options).put(f"journal/{number}", b"")
    check_reachable(url, s3_options)


def test_a_bucket_that_is_not_there_is_named(s3_options: dict[str, str]) -> None:
    with pytest.raises(StorageError, match="s3://no-such-bucket/x"):
        check_reachable("s3://no-such-bucket/x", s3_options)


def test_local_stores_are_always_in_reach(tmp_path: object) -> None:
    check_reachable(f"file://{tmp_path}/not-there")
    check_reachable("memory://x")


class NoIdentity(BaseHTTPRequestHandler):
    """A proxy to a machine that has no identity in a cloud: whoever asks for one gets none."""

    def do_PUT(self) -> None:
        self.send_error(404)

    do_GET = do_PUT

    def log_message(self, *_: object) -> None:
        return None


def test_s3_without_credentials_begins_with_that(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    with HTTPServer(("127.0.0.1", 0), NoIdentity) as proxy, ThreadPoolExecutor(1) as threads:
        threads.submit(proxy.serve_forever, 0.01)
        try:
            with pytest.raises(StorageError, match=r"^s3://bucket/x: no credentials were found: give them in storage_"):
                options = {"aws_region": "us-east-1", "proxy_url": f"http://127.0.0.1:{proxy.server_port}"}
                check_reachable("s3://bucket/x", options)
        finally:
            proxy.shutdown()
