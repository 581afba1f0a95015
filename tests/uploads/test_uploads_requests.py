"""How many requests leave the process: exactly the attempts of the policy, counted by the server."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from changelog_kit import LOG, change
from holdfast.changelog.writer import ChangelogWriter
from holdfast.changelog_config import RetryPolicy
from holdfast.errors import StorageError
from holdfast.state.table import merge_changes
from holdfast.storage.store import ObjectStore, open_store
from holdfast.uploads.uploader import Uploader


class Server:
    """Answers every PUT as told, and counts them."""

    def __init__(self) -> None:
        self.answers: list[int] = []
        self.puts: list[str] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_PUT(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                server.puts.append(self.path)
                self._answer(server.answers.pop(0) if server.answers else 200)

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self._answer(200, b"<DeleteResult/>")

            def _answer(self, status: int, body: bytes = b"") -> None:
                self.send_response(status)
                self.send_header("ETag", '"1"')
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Quiet."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))
        self._thread.start()

    def store(self) -> ObjectStore:
        options = {
            "aws_endpoint": f"http://127.0.0.1:{self._http.server_port}",
            "aws_region": "eu-west-1",
            "aws_access_key_id": "key",
            "aws_secret_access_key": "secret",
            "allow_http": "true",
        }
        return open_store("s3://bucket/job", options)

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(60)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.mark.parametrize("status", [500, 503, 429, 408])
def test_the_client_retries_nothing_by_itself_so_that_requests_are_exactly_the_attempts(server, status):
    server.answers = [status] * 100
    uploader = Uploader(server.store(), 1, 1, retries=RetryPolicy.fixed(4, timeout=None, next_attempt_delay=0))
    writer = ChangelogWriter(LOG, uploader, merge_changes)
    writer.append(0, change("a"))
    with pytest.raises(StorageError):
        writer.persist(0).result(60)
    uploader.close(discard=False)
    assert len(server.puts) == len(set(server.puts)) == 4


def test_the_first_success_is_the_last_request(server):
    server.answers = [500, 200]
    uploader = Uploader(server.store(), 1, 1, retries=RetryPolicy.fixed(4, timeout=None, next_attempt_delay=0))
    writer = ChangelogWriter(LOG, uploader, merge_changes)
    writer.append(0, change("a"))
    [piece] = writer.persist(0).result(60)
    uploader.close(discard=False)
    assert len(server.puts) == 2
    assert server.puts[1].endswith(piece.object)
