"""The process from which Spark forks its Python workers. It loads everything that each new worker would load.

Spark's own daemon imports almost nothing before it forks, so each TaskManager and sender spends its first one to two
seconds of processor time on imports and compiled kernels. With `spark.python.daemon.module` "holdfast.spark.daemon",
which `start()` sets by itself on `local[…]`, each executor does that once, and its workers start with everything
loaded.

    daemon: imports, kernels ──fork──► TaskManager, sender, worker of a short job: the program, a connection, a port

A program's own sources and sinks load with the program, in some 10 ms.

Invariant: nothing loaded here starts a Python thread or a store's runtime, since neither survives a fork.
"""

import gc
import sys
from importlib import import_module
from pathlib import Path

LOADED = (
    "pyspark.worker",  # Spark imports it after the fork
    "pyarrow.acero",
    "holdfast.exchange.main",
    "holdfast.functions.aggregates.spec",
    "holdfast.spark.staying",
    "holdfast.spark.tasks",
    "holdfast.storage.obstore_store",
    "holdfast.taskmanager.main",
)
"""Modules that each TaskManager and sender needs."""
ARCHIVES = (".zip", ".jar")


def load() -> None:
    """Load modules, and the kernels that this machine has.

    No kernel is compiled here: a worker can ask the JobMaster for it, and report why it waits.

    The garbage collector is off meanwhile: modules are not garbage, and its search took a fifth of the time. Afterwards
    it ignores the memory that workers share, and so does not copy it.
    """
    gc.disable()
    sys.path[:] = without_archives(sys.path)
    for archive in set(sys.path_importer_cache) - set(sys.path):
        if archive.endswith(ARCHIVES):
            del sys.path_importer_cache[archive]
    for name in LOADED:
        import_module(name)
    from holdfast.kernels.cache import nothing_compiled
    from holdfast.printable import logger
    from holdfast.taskmanager.warming import warm_kernels

    try:
        with nothing_compiled():
            warm_kernels()
    except Exception as error:
        logger(__name__).info("kernels are loaded by each worker: %s", error)
    gc.freeze()
    gc.enable()


def without_archives(path: list[str]) -> list[str]:
    """Return the module path without the archives inside an installed PySpark.

    Spark puts them first. They contain the same modules as the installation, but without compiled code: each daemon
    spent a third of a second on compiling a hundred of them, and each worker a twentieth on reading their 13,000 names
    again. The archives of a Spark that is not installed stay.
    """
    inside = {
        entry
        for entry in path
        for site in path
        if entry.endswith(ARCHIVES) and entry.startswith((f"{site}/pyspark/python/lib/", f"{site}/pyspark/jars/"))
    }
    rest = [entry for entry in path if entry not in inside]
    return rest if any(Path(entry, "py4j").is_dir() for entry in rest) else path


if __name__ == "__main__":
    load()
    from pyspark.daemon import manager

    manager()
