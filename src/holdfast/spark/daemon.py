"""The process that Spark forks its Python workers from, with everything loaded that a new worker would load.

Spark's own daemon imports next to nothing before it forks, so each TaskManager and sender spends its first one to two
seconds of processor time on imports and compiled kernels. With `spark.python.daemon.module` "holdfast.spark.daemon",
which `start()` sets itself on `local[…]`, each executor does that once, and its workers begin with it.

    daemon: imports, kernels ──fork──► TaskManager, sender, worker of a short job: the program, a connection, a port

Invariant: nothing loaded here starts a thread of Python, or the runtime of a store, since neither outlives a fork.
"""

import gc

import pyspark.worker  # noqa: F401  Spark imports it after the fork
from pyspark.daemon import manager

import holdfast
import holdfast.exchange.main
import holdfast.spark.staying
import holdfast.spark.tasks
import holdfast.storage.obstore_store
import holdfast.taskmanager.main
from holdfast.kernels.cache import nothing_compiled
from holdfast.printable import logger
from holdfast.taskmanager.warming import warm_kernels

_log = logger(__name__)


def load() -> None:
    """Load the public API, which users' modules import, and the kernels that this machine has.

    No kernel is compiled here: a worker can ask the JobMaster for it, and say what it waits for.

    Afterwards the garbage collector leaves alone, and so does not copy, the memory that workers share.
    """
    for name in holdfast.__all__:
        getattr(holdfast, name)
    try:
        with nothing_compiled():
            warm_kernels()
    except Exception as error:
        _log.info("kernels are loaded by each worker: %s", error)
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    load()
    manager()
