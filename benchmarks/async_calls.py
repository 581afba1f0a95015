"""Asynchronous calls that take 100 ms, on a stand-in transport and over HTTP: rows a second, and whether memory grows.

    python -m benchmarks.async_calls --json

The job runs on Spark with two senders, which share a capacity of 10,000 calls: at most 100,000 answers a second.

    rows_per_s         answers a second where a call is a pause on the event loop
    http_rows_per_s    answers a second from a real HTTP server on loopback, in a process of its own, by raw sockets
    http_limit_per_s   what that server answers to a client that does nothing else, with as many connections
    memory_growth_mb   growth of the senders' resident memory over the second half of the run
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

import psutil

import holdfast as hf
from benchmarks.count import session

LATENCY_S = 0.1
CONNECTIONS = 2_000
"""Connections over all senders. The system allows so many sockets of a process."""


class StandIn(hf.AsyncFunction):
    async def call(self, row: Any) -> Any:
        await asyncio.sleep(LATENCY_S)
        return row


class Http(hf.AsyncFunction):
    """Asks over connections that stay open, as a client with a pool does; a request is a line of HTTP."""

    def __init__(self, port: int, connections: int) -> None:
        self._port, self._most = port, connections

    async def open(self, ctx: hf.CallContext) -> None:
        self._free: asyncio.LifoQueue[Any] = asyncio.LifoQueue()
        for _ in range(min(self._most, ctx.capacity)):
            self._free.put_nowait(await asyncio.open_connection("127.0.0.1", self._port))

    async def call(self, row: Any) -> Any:
        reader, writer = connection = await self._free.get()
        writer.write(b"GET / HTTP/1.1\r\nHost: service\r\n\r\n")
        await reader.readuntil(b"\r\n\r\nok")
        self._free.put_nowait(connection)
        return row

    async def close(self) -> None:
        while not self._free.empty():
            self._free.get_nowait()[1].close()


async def serve() -> None:
    """Answer each request after `LATENCY_S`."""

    class Answering(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            self._transport = transport

        def data_received(self, data: bytes) -> None:
            for _ in range(data.count(b"\r\n\r\n")):
                loop.call_later(LATENCY_S, self._answer)

        def _answer(self) -> None:
            if not self._transport.is_closing():
                self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    loop = asyncio.get_running_loop()
    server = await loop.create_server(Answering, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def limit(port: int, seconds: float) -> float:
    """Requests a second that the server answers to a client that only asks."""
    http = Http(port, CONNECTIONS)
    await http.open(hf.CallContext(CONNECTIONS))
    answered, ends_s = 0, time.monotonic() + seconds

    async def ask() -> None:
        nonlocal answered
        while time.monotonic() < ends_s:
            await http.call(None)
            answered += 1

    await asyncio.gather(*(ask() for _ in range(CONNECTIONS)))
    await http.close()
    return answered / seconds


def measured(fn: hf.AsyncFunction, capacity: int, seconds: float) -> tuple[float, float]:
    """Run a job for some seconds; return rows a second, and the growth of memory in MB over its second half."""
    with tempfile.TemporaryDirectory() as folder:
        spark = session("local[4]")
        job = hf.Job(
            spark,
            name="calls",
            storage=f"file://{folder}",
            senders=2,
            max_rows_per_batch=100_000,
            checkpoint=hf.CheckpointConfig(trigger=hf.every("5s")),
        )
        rows = job.read(hf.SequenceSource(splits=2))
        rows.map_async(fn, "value BIGINT", capacity=capacity, ordered=False, timeout=None).write(hf.NoopSink())
        query = job.start()
        try:
            while query.totals.batches < 3:
                time.sleep(0.1)
            first, begun_s, memory = query.totals.rows, time.monotonic(), [resident_mb()]
            rows, ended_s = first, begun_s  # when the last batch ended: a batch may take as long as the run
            while time.monotonic() < begun_s + seconds or rows == first:
                time.sleep(0.1)
                memory.append(resident_mb())
                if query.totals.rows != rows:
                    rows, ended_s = query.totals.rows, time.monotonic()
            rate = (rows - first) / (ended_s - begun_s)
        finally:
            query.stop()
            spark.stop()
    return rate, memory[-1] - memory[len(memory) // 2]


def resident_mb() -> float:
    """The resident memory of all Python processes below this one, in MB."""
    found = 0.0
    for process in psutil.Process(os.getpid()).children(recursive=True):
        try:
            found += process.memory_info().rss if "python" in process.name() else 0
        except psutil.NoSuchProcess:
            continue
    return found / 2**20


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--capacity", type=int, default=10_000)
    parser.add_argument("--json", action="store_true", help="only the JSON line")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.serve:
        asyncio.run(serve())
        return
    rate, grown_mb = measured(StandIn(), given.capacity, given.seconds)
    server = subprocess.Popen([sys.executable, "-m", "benchmarks.async_calls", "--serve"], stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        most = asyncio.run(limit(port, given.seconds / 3))
        http, _ = measured(Http(port, CONNECTIONS // 2), given.capacity, given.seconds)
    finally:
        server.kill()
        server.wait()
    figures = {
        "rows_per_s": round(rate),
        "http_rows_per_s": round(http),
        "http_limit_per_s": round(most),
        "memory_growth_mb": round(grown_mb, 1),
    }
    if not given.json:
        for name, value in figures.items():
            print(f"{name:20} {value:,}")
    print(json.dumps(figures))


if __name__ == "__main__":
    main(sys.argv[1:])
