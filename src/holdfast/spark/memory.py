"""Comparison of a TaskManager's memory setting with the memory that Spark grants its Python workers."""

from holdfast.errors import JobRefused
from holdfast.settings import TaskManagerConfig
from holdfast.spark.host import SparkHost

_MEBIBYTE = 1024 * 1024
_UNITS = {"b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def check_memory(host: SparkHost, config: TaskManagerConfig, task_managers: int) -> None:
    """Check memory limits. Raises `JobRefused`, naming both settings, if Spark enforces a limit below that of the
    TaskManager."""
    if not task_managers:
        return
    limit = host.setting("spark.executor.pyspark.memory")
    if limit is not None and spark_bytes(limit) < config.memory_bytes:
        raise JobRefused(
            f"TaskManagerConfig(memory={config.memory!r}) is more than spark.executor.pyspark.memory={limit} lets a "
            "Python worker use; raise that setting, or lower memory"
        )
    master = host.master
    if not master.startswith(("yarn", "k8s")) or limit is not None:
        return
    overhead = host.setting("spark.executor.memoryOverhead")
    granted = spark_bytes(overhead) if overhead is not None else _default_overhead(host)
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


def _default_overhead(host: SparkHost) -> int:
    """Return Spark's default overhead. On Kubernetes in cluster mode Spark itself sets a higher factor for Python."""
    factor = host.setting("spark.executor.memoryOverheadFactor") or host.setting(
        "spark.kubernetes.memoryOverheadFactor"
    )
    least = spark_bytes(host.setting("spark.executor.minMemoryOverhead") or "384m")
    return max(least, int(spark_bytes(host.setting("spark.executor.memory") or "1g") * float(factor or 0.1)))
