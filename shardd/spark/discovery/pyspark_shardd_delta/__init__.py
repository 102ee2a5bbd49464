"""Makes format("shardd_delta") known to Spark."""

from shardd.spark.sinks import DeltaSink as DefaultSource

__all__ = ["DefaultSource"]
