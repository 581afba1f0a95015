"""The imports of a TaskManager's process: they are the floor under the time of a recovery without standby."""

import subprocess
import sys

NOT_NEEDED = ("pandas", "deltalake", "holdfast.job", "holdfast.query", "holdfast.ui", "holdfast.jobmaster.master")


def test_a_task_manager_imports_neither_the_driver_side_nor_what_only_some_jobs_use():
    program = "import holdfast.taskmanager.main, sys; print('\\n'.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert [name for name in NOT_NEEDED if name in loaded] == []


def test_spark_s_second_attempt_at_a_process_ends_before_it_imports_anything_heavy():
    program = "import holdfast.spark.staying, sys; print('\\n'.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert [name for name in ("numba", "pyarrow", "holdfast.taskmanager") if name in loaded] == []


WORKER_OF_THE_DAEMON = """
import sys, threading
import holdfast.spark.daemon
holdfast.spark.daemon.load()
loaded = set(sys.modules)
import pyspark.worker
import holdfast as hf
hf.Job, hf.ProcessFunction, hf.DeltaSink
from holdfast.storage.store import open_store
from holdfast.taskmanager.warming import warm_kernels
warm_kernels()
open_store("memory://started")
print(sorted(set(sys.modules) - loaded), threading.active_count())
"""


def test_holdfasts_daemon_leaves_its_workers_nothing_to_import_and_starts_no_thread():
    run = subprocess.run([sys.executable, "-c", WORKER_OF_THE_DAEMON], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == ["[] 1"]
