"""An S3 stand-in in a process of its own that counts requests by their kind, so that its work counts for nobody else.

python benchmarks/s3_counted.py [MS]    prints its options as JSON, then its counts for each line that it reads

Each request is answered `MS` milliseconds later than it would be.
"""

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

KIT = Path(__file__).resolve().parents[1] / "tests"


class CountedS3:
    """A running stand-in, seen from another process. Its bucket is called `bucket`."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.options: dict[str, str] = self._read()

    def counts(self) -> Counter[str]:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return Counter(self._read())

    def _read(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


@contextmanager
def counted_s3(latency_ms: float = 0.0) -> Iterator[CountedS3]:
    """Run one, whose requests take so many milliseconds longer."""
    command = [sys.executable, __file__, str(latency_ms)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        try:
            yield CountedS3(process)
        finally:
            process.kill()


def serve(latency_s: float) -> None:
    sys.path.insert(0, str(KIT))
    import odd_s3_kit

    counts: Counter[str] = Counter()

    class Counted(odd_s3_kit._Handler):
        def _handle(self) -> None:
            time.sleep(latency_s)
            _, _, query = self.path.partition("?")
            is_list = self.command == "GET" and "list-type" in query
            counts["LIST" if is_list else self.command] += 1
            super()._handle()

        do_PUT = do_GET = do_HEAD = do_POST = do_DELETE = _handle

    odd_s3_kit._Handler = Counted  # type: ignore[misc]
    with odd_s3_kit.odd_s3() as store:
        print(json.dumps(store.options), flush=True)
        for _ in sys.stdin:
            print(json.dumps(dict(counts)), flush=True)


if __name__ == "__main__":
    serve(float(sys.argv[1]) / 1000.0 if len(sys.argv) > 1 else 0.0)
