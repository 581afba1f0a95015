"""A driver of the benchmark `benchmarks.failover --mode driver`, and the measurement around such drivers.

Drivers run one after the other in processes of their own: the first leads, the next waits. The leader is killed with
all its executors, the driver in waiting takes over, and another begins to wait.

    p50_s, max_s              from the kill to the first batch that the next leader commits
    lost_rows, doubled_rows   of the numbers in the Delta table, against those that the sources have read, and of the
                              counts of all keys
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import holdfast as hf
from benchmarks.count import percentile
from benchmarks.failover import KEYS, WAIT_S_MAX, keys, session, until
from benchmarks.restore_sizes import ROWS_PER_BATCH, VALUE_BYTES, Keep, RandomValues

ROWS_PER_S = 2000
SPLITS = 2
LOAD_S_MAX = 3600.0
SAID = "said: "
"""Beginning of the lines in which a driver says how far it is."""


def job_of(spark: Any, folder: Path, state_mb: int) -> hf.Job:
    """A job with that much state in values, and a steady stream that is counted by key and written to a table."""
    loaded = state_mb * 1_000_000 // VALUE_BYTES
    job = hf.Job(
        spark,
        name="failover_driver",
        storage=(folder / "storage").as_uri(),
        parallelism=4,
        task_managers=2,
        senders=1,
        state=hf.RocksDBState(),
        task_manager=hf.TaskManagerConfig(memory="1GB"),
        max_rows_per_batch=ROWS_PER_BATCH,
        checkpoint=hf.CheckpointConfig(trigger=hf.every("1s")),
    )
    load = job.read(hf.SequenceSource(loaded, splits=SPLITS, name="load"))
    rows = load.map_batches(RandomValues(loaded), "k BIGINT, v BINARY")
    rows.key_by("k").process(Keep(), "k BIGINT", name="keep").write(hf.NoopSink(name="nothing"))
    steady = job.read(hf.SequenceSource(rows_per_second=ROWS_PER_S, splits=SPLITS, name="steady"))
    steady.write(hf.DeltaSink((folder / "table").as_uri(), name="table"))
    counted = steady.map_batches(keys, "k BIGINT").key_by("k").aggregate(n=hf.count(), name="counts")
    counted.write(hf.NoopSink(name="counted"))
    return job


def drive(folder: Path, state_mb: int, standby: bool) -> None:
    """Lead, or wait and then lead, until a line on standard input asks for the end; say when what has happened."""
    spark = session("local[5]")
    query = job_of(spark, folder, state_mb).start(hf.processing_time("0s"), standby=standby)
    if standby:
        until(lambda: _is_ready(query), LOAD_S_MAX)
        _say("ready")
        until(lambda: not query.status["message"].startswith("Standby"), LOAD_S_MAX)
        _say("leads")
    until(lambda: query.totals.batches > 0, LOAD_S_MAX)
    _say("committed")
    until(lambda: _loaded(query) >= state_mb * 1_000_000 // VALUE_BYTES, LOAD_S_MAX)
    query.trigger_checkpoint(600)
    _say("loaded")
    sys.stdin.readline()
    query.stop()
    _say("stopped")


def _is_ready(query: Any) -> bool:
    found = query.status["standby"]
    return found["leaderBeats"] is not None and found["processesReady"] == found["processes"] and found["isConnected"]


def _loaded(query: Any) -> int:
    return 0 if sum(query.view().lag.get("load", {"": 1}).values()) else sys.maxsize


def _say(word: str) -> None:
    print(SAID + json.dumps({"word": word, "at_s": time.monotonic()}), flush=True)


class DriverProcess:
    """A driver, in a session of its own with all its executors."""

    def __init__(self, folder: Path, state_mb: int, number: int, standby: bool) -> None:
        command = [sys.executable, "-m", "benchmarks.failover_driver", "--folder", str(folder)]
        command += ["--state-mb", str(state_mb), *(["--standby"] if standby else [])]
        self._log = folder / f"driver-{number}.log"
        with self._log.open("w") as out:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )

    def said_s(self, word: str) -> float:
        """Wait until the driver has said a word; return when it did."""
        found: list[float] = []

        def has_said() -> bool:
            if self._process.poll() is not None and not self._said(word):
                raise SystemExit(f"a driver has ended:\n{self._log.read_text()[-3000:]}")
            found[:] = self._said(word)
            return bool(found)

        until(has_said, LOAD_S_MAX)
        return found[0]

    def _said(self, word: str) -> list[float]:
        lines = [each for each in self._log.read_text().splitlines() if each.startswith(SAID) and each.endswith("}")]
        told = [json.loads(each.removeprefix(SAID)) for each in lines]
        return [each["at_s"] for each in told if each["word"] == word]

    def kill(self) -> float:
        """Kill the driver, its JVM, and all executors; return when."""
        at_s = time.monotonic()
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        return at_s

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"stop\n")
        self._process.stdin.flush()
        self.said_s("stopped")
        self._process.wait(WAIT_S_MAX)

    def end(self) -> None:
        if self._process.poll() is None:
            self.kill()


def measure_driver(state_mb: int, kills: int, pause_s: float) -> dict[str, Any]:
    """Kill the leading driver with all its executors again and again."""
    with tempfile.TemporaryDirectory(prefix="holdfast-driver-", ignore_cleanup_errors=True) as name:
        folder, drivers, taken_s, led_s = Path(name), [], [], []
        try:
            drivers.append(DriverProcess(folder, state_mb, 0, standby=False))
            for number in range(1, kills + 1):
                drivers[-1].said_s("loaded")
                drivers.append(DriverProcess(folder, state_mb, number, standby=True))
                drivers[-1].said_s("ready")
                time.sleep(pause_s)
                killed_s = drivers[-2].kill()
                led_s.append(drivers[-1].said_s("leads") - killed_s)
                taken_s.append(drivers[-1].said_s("committed") - killed_s)
            drivers[-1].said_s("loaded")
            drivers[-1].stop()
            lost, doubled = _compared(folder)
        finally:
            for each in drivers:
                each.end()
    return {
        "p50_s": round(percentile(taken_s, 50), 2),
        "max_s": round(max(taken_s), 2),
        "leads_p50_s": round(percentile(led_s, 50), 2),
        "lost_rows": lost,
        "doubled_rows": doubled,
        "state_mb": state_mb,
        "kills": kills,
    }


def _compared(folder: Path) -> tuple[int, int]:
    """Rows lost and doubled, in the table and in the counts, by the positions of the newest checkpoint."""
    from deltalake import DeltaTable

    from holdfast.stored_state.opened import open_checkpoint, open_storage

    storage = (folder / "storage").as_uri()
    stops = dict(open_checkpoint(open_storage(storage)).record.offsets["steady"])
    expected = np.concatenate(
        [np.arange(int(split), int(split) + SPLITS * int(n), SPLITS) for split, n in stops.items()]
    )
    written = pa.table(DeltaTable(str(folder / "table")).to_pyarrow_table()).column("value").to_numpy()
    values, times = np.unique(written, return_counts=True)
    lost = len(np.setdiff1d(expected, values)) + len(np.setdiff1d(values, expected))
    doubled = int((times - 1).sum())
    state = hf.read_state(storage, "counts")
    counts = np.zeros(KEYS, np.int64)
    counts[state.column("k").to_numpy()] = state.column("n.count").to_numpy()
    wanted = np.bincount(expected % KEYS, minlength=KEYS)
    return lost + int(np.maximum(wanted - counts, 0).sum()), doubled + int(np.maximum(counts - wanted, 0).sum())


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--state-mb", type=int, required=True)
    parser.add_argument("--standby", action="store_true")
    options = parser.parse_args(argv)
    drive(options.folder, options.state_mb, options.standby)


if __name__ == "__main__":
    main(sys.argv[1:])
