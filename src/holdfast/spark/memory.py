"""Comparison of a TaskManager's memory setting with the memory that Spark grants its Python workers."""

from typing import Any

from pyspark.sql import SparkSession

from holdfast.errors import JobRefused
from holdfast.settings import TaskManagerConfig
from holdfast.spark.session import spark_settings

_MEBIBYTE = 1024 * 1024
_UNITS = {"b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def check_memory(spark: SparkSession, config: TaskManagerConfig, task_managers: int) -> None:
    """Check memory limits. Raises `JobRefused`, naming both settings, if a limit that Spark enforces is below the
    TaskManager's."""
    if not task_managers:
        return
    conf = spark_settings(spark)
    limit = conf.get("spark.executor.pyspark.memory")
    if limit is not None and spark_bytes(limit) < config.memory_bytes:
        raise JobRefused(
            f"TaskManagerConfig(memory={config.memory!r}) is more than spark.executor.pyspark.memory={limit} lets a "
            "Python worker use; raise that setting, or lower memory"
        )
    master = spark.sparkContext.master
    if not master.startswith(("yarn", "k8s")) or limit is not None:
        return
    overhead = conf.get("spark.executor.memoryOverhead")
    granted = spark_bytes(overhead) if overhead is not None else _default_overhead(conf)
    if granted < config.memory_bytes:
        raise JobRefused(
            f"TaskManagerConfig(memory={config.memory!r}) lives outside the JVM heap, and on {master.split(':')[0]} an "
            f"executor's container grants {granted // _MEBIBYTE} MiB for that (spark.executor.memoryOverhead); "
            "raise that setting, or lower memory"
        )


def spark_bytes(text: str, unit: str = "m") -> int:
    """Parse a size as Spark writes it: a number with an optional unit (b, k, m, g, t, also kb, …)."""
    lowered = text.strip().lower().removesuffix("ib")
    if lowered.endswith("b") and not lowered[:-1].isdigit():
        lowered = lowered[:-1]
    if lowered[-1:].isdigit():
        lowered += unit
    return int(lowered[:-1]) * _UNITS[lowered[-1]]


def _default_overhead(conf: Any) -> int:
    """Compute Spark's default overhead; on Kubernetes in cluster mode Spark itself sets a higher factor for Python."""
    factor = conf.get("spark.executor.memoryOverheadFactor") or conf.get("spark.kubernetes.memoryOverheadFactor")
    least = spark_bytes(conf.get("spark.executor.minMemoryOverhead") or "384m")
    return max(least, int(spark_bytes(conf.get("spark.executor.memory") or "1g") * float(factor or 0.1)))
