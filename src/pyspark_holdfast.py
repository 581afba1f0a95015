"""Makes `spark.read.format("holdfast")` known to Spark, which looks for modules of such names by itself."""

from holdfast.spark.state_source import HoldfastStateSource as DefaultSource

__all__ = ["DefaultSource"]
