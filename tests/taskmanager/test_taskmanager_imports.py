"""The imports of a TaskManager's process: they are the floor under the time of a recovery without standby."""

import subprocess
import sys

from holdfast.spark.daemon import without_archives
from holdfast.taskmanager.warming import warm_kernels

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
hf.count, hf.SequenceSource
from holdfast.storage.store import open_store
from holdfast.taskmanager.warming import warm_kernels
warm_kernels()
open_store("memory://started")
print(sorted(set(sys.modules) - loaded), threading.active_count())
print(sorted(name for name in ("holdfast.jobmaster.master", "holdfast.query", "numba.np.linalg") if name in loaded))
"""


def test_holdfasts_daemon_loads_what_its_workers_need_but_no_compiler_and_no_drivers_side_and_starts_no_thread():
    warm_kernels()  # so that they are kept on this machine: the daemon compiles none
    run = subprocess.run([sys.executable, "-c", WORKER_OF_THE_DAEMON], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == ["['holdfast.api', 'holdfast.sources.sequence'] 1", "[]"]


def test_the_daemon_takes_pyspark_from_its_installation_instead_of_from_the_archives_inside(tmp_path):
    site, elsewhere = str(tmp_path / "site-packages"), "/opt/spark/python/lib/pyspark.zip"
    (tmp_path / "site-packages" / "py4j").mkdir(parents=True)
    inside = [f"{site}/pyspark/python/lib/pyspark.zip", f"{site}/pyspark/python/lib/py4j-0.10-src.zip"]
    inside.append(f"{site}/pyspark/jars/spark-core.jar")
    assert without_archives([*inside, "/own.zip", site]) == ["/own.zip", site]
    for path in ([*inside, "/env"], [elsewhere, site], [*inside, str(tmp_path)]):
        assert without_archives(path) == path
    (tmp_path / "site-packages" / "py4j").rmdir()
    assert without_archives([*inside, site]) == [*inside, site]  # py4j would be found nowhere else
