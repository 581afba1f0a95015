"""The process that Spark forks its Python workers from, with everything loaded that each new worker would load.

Spark's own daemon imports next to nothing before it forks, so each TaskManager and sender spends its first one to two
seconds of processor time on imports and compiled kernels. With `spark.python.daemon.module` "holdfast.spark.daemon",
which `start()` sets itself on `local[…]`, each executor does that once, and its workers begin with it.

    daemon: imports, kernels ──fork──► TaskManager, sender, worker of a short job: the program, a connection, a port

A program's own sources and sinks load with the program, in some 10 ms.

Invariant: nothing loaded here starts a thread of Python, or the runtime of a store, since neither outlives a fork.
"""

import gc
import sys
from importlib import import_module

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


def load() -> None:
    """Load modules, and the kernels that this machine has.

    No kernel is compiled here: a worker can ask the JobMaster for it, and say what it waits for.

    The garbage collector rests meanwhile: modules are no garbage, and its search took a fifth of the time. Afterwards
    it leaves alone, and so does not copy, the memory that workers share.
    """
    gc.disable()
    sys.path[:] = installed_first(sys.path)
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


def installed_first(path: list[str]) -> list[str]:
    """Order the path of modules so that PySpark comes from its installation, not from the archives inside of it.

    Spark puts its archives first. They hold the modules that are installed, without compiled code: each daemon compiled
    a hundred modules for a third of a second. The archives of a Spark that is not installed stay where they are.
    """

    def comes_later(entry: str) -> bool:
        inside, _, archive = entry.rpartition("/pyspark/python/lib/")
        return archive.endswith(".zip") and inside in path

    return sorted(path, key=comes_later)


if __name__ == "__main__":
    load()
    from pyspark.daemon import manager

    manager()
