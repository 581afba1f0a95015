"""The process that Spark forks its Python workers from, with Holdfast loaded.

Spark's own daemon imports next to nothing before it forks, so each TaskManager and sender spends its first second on
imports. In a session whose `spark.python.daemon.module` is "holdfast.spark.daemon" each executor imports once.
"""

from pyspark.daemon import manager

import holdfast.exchange.main
import holdfast.spark.staying
import holdfast.spark.tasks
import holdfast.taskmanager.main  # noqa: F401

if __name__ == "__main__":
    manager()
