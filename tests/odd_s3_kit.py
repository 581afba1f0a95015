"""A small server of the S3 protocol, for a single bucket, that can be as odd as stores which are not quite S3."""

import random
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

ACCESS = {"aws_access_key_id": "id", "aws_secret_access_key": "key", "aws_region": "us-east-1", "allow_http": "true"}


class OddS3:
    """The server's objects, and its oddities; all may change while it runs."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.keeps_conditions = True
        self.tells_missing = False
        """True: a deletion of several objects reports those that are not there as errors."""
        self.refused: dict[str, tuple[int, str, str]] = {}
        """Status, code and further XML with which requests are refused, by method; `*` for all."""
        self.refused_below = ""
        """The beginning of the keys for which requests are refused; listings count as their prefix."""
        self.faults: random.Random | None = None
        """Draws the requests that fail: half of them before and half of them after they have done their work."""
        self.fault_share = 0.0
        self.requests = 0
        self.lock = threading.RLock()
        self.options: dict[str, str] = {}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store: OddS3
    fault = ""

    def log_message(self, *_: object) -> None:
        return

    def _reply(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content_Length": str(len(body))}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _error(self, status: int, code: str, more: str = "") -> None:
        self._reply(status, f"<Error><Code>{code}</Code><Message>{code}</Message>{more}</Error>".encode())

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        key = unquote(url.path.split("/", 2)[2]) if url.path.count("/") > 1 else ""
        refused = self.store.refused.get(self.command, self.store.refused.get("*"))
        place = key or parse_qs(url.query).get("prefix", [""])[0]
        with self.store.lock:
            self.store.requests += 1
            self.fault = self._drawn_fault()
            if self.fault == "unheard":
                self._error(503, "SlowDown")
            elif refused is not None and place.startswith(self.store.refused_below):
                self._error(*refused)
            elif self.command == "PUT":
                self._put(key, body)
            elif self.command == "POST":
                self._delete_several(body)
            elif self.command == "DELETE":
                self.store.objects.pop(key, None)
                self._reply(204)
            elif key:
                self._get(key)
            else:
                self._list({name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()})

    def _drawn_fault(self) -> str:
        drawn = 1.0 if self.store.faults is None else self.store.faults.random() / (self.store.fault_share or 1e-9)
        return "" if drawn >= 1.0 else "unheard" if drawn < 0.5 else "unanswered"

    do_PUT = do_GET = do_HEAD = do_POST = do_DELETE = _handle

    def _put(self, key: str, body: bytes) -> None:
        if self.store.keeps_conditions and self.headers.get("If-None-Match") == "*" and key in self.store.objects:
            return self._error(412, "PreconditionFailed")
        self.store.objects[key] = body
        if self.fault == "unanswered":
            return self._error(500, "InternalError")
        return self._reply(200, ETag='"e"')

    def _get(self, key: str) -> None:
        if key not in self.store.objects:
            return self._error(404, "NoSuchKey")
        data, modified = self.store.objects[key], "Thu, 01 Jan 2026 00:00:00 GMT"
        span = re.match(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if span is None:
            return self._reply(200, data, ETag='"e"', Last_Modified=modified)
        first, last = int(span[1]), min(int(span[2]), len(data) - 1)
        content_range = f"bytes {first}-{last}/{len(data)}"
        return self._reply(206, data[first : last + 1], ETag='"e"', Last_Modified=modified, Content_Range=content_range)

    def _list(self, query: dict[str, str]) -> None:
        found = sorted(
            name
            for name in self.store.objects
            if name.startswith(query.get("prefix", "")) and name > query.get("start-after", "")
        )
        items = "".join(
            f"<Contents><Key>{escape(name)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>e</ETag>"
            f"<Size>{len(self.store.objects[name])}</Size></Contents>"
            for name in found
        )
        self._reply(200, f"<ListBucketResult><IsTruncated>false</IsTruncated>{items}</ListBucketResult>".encode())

    def _delete_several(self, body: bytes) -> None:
        told = ""
        for name in re.findall(r"<Key>(.*?)</Key>", body.decode()):
            was = self.store.objects.pop(name, None)
            if was is None and self.store.tells_missing:
                told += f"<Error><Key>{name}</Key><Code>NoSuchKey</Code><Message>no such key</Message></Error>"
            else:
                told += f"<Deleted><Key>{name}</Key></Deleted>"
        self._reply(200, f"<DeleteResult>{told}</DeleteResult>".encode())


@contextmanager
def odd_s3() -> Iterator[OddS3]:
    """Serve a bucket called `bucket` on this machine."""
    store = OddS3()
    handler = type("Handler", (_Handler,), {"store": store})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    store.options = {**ACCESS, "aws_endpoint": f"http://127.0.0.1:{server.server_address[1]}"}
    try:
        yield store
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
