"""How long a read of state by key takes while the job runs: `query.read_state(operator, key=…)` on a real session.

    python -m benchmarks.live_reads --json

The job of `benchmarks.restore_sizes`: a TaskManager with `--state-mb` of values of 1,000 bytes, of which 2,000 a second
are replaced, with a checkpoint each second. The driver reads `--reads` random keys one after the other.

    p50_ms, p99_ms   from the call to its answer
    cpu_ms           processor time of the driver for a read
"""

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.count import percentile
from benchmarks.failover import LOCAL, session
from benchmarks.remote_apply import BACKENDS
from benchmarks.restore_sizes import VALUE_BYTES, started


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--state-mb", type=int, default=200)
    parser.add_argument("--backend", choices=list(BACKENDS), default="rocksdb")
    parser.add_argument("--reads", type=int, default=1000)
    parser.add_argument("--json", action="store_true", help="the default; for the same form as other benchmarks")
    options = parser.parse_args(argv)
    keys, rng, taken_ms = options.state_mb * 1_000_000 // VALUE_BYTES, random.Random(1), []
    with tempfile.TemporaryDirectory(prefix="holdfast-reads-", ignore_cleanup_errors=True) as folder:
        settings = {"state": BACKENDS[options.backend]()}
        query = started(session(LOCAL), options.state_mb, False, Path(folder), **settings)
        try:
            begun_cpu_s = time.process_time()
            for _ in range(options.reads):
                begun_s = time.monotonic()
                assert query.read_state("keep", key={"k": rng.randrange(keys)}).num_rows == 1
                taken_ms.append((time.monotonic() - begun_s) * 1e3)
            cpu_s = time.process_time() - begun_cpu_s
        finally:
            query.stop()
    found = {f"p{each}_ms": percentile(taken_ms, each) for each in (50, 99)} | {"cpu_ms": cpu_s / options.reads * 1e3}
    print(json.dumps({name: round(value, 2) for name, value in found.items()} | {"reads": options.reads}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
