"""The benchmark of union state gives its figures, at a small size."""

import json
import subprocess
import sys

import pytest


@pytest.mark.long
def test_the_benchmark_reads_each_object_once_and_many_at_a_time():
    sizes = ["--objects", "96", "--entries", "3", "--latency-ms", "20", "--serial-sample", "10"]
    command = [sys.executable, "-m", "benchmarks.union_restore", "--json", *sizes]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert {"objects", "latency_ms", "parallel_s", "serial_s", "peak_memory_mb"} <= found.keys()
    assert (found["objects"], found["entries"]) == (96, 288)
    assert found["serial_s"] >= 96 * 0.02
