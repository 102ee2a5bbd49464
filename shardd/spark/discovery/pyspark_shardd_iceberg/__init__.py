"""Makes format("shardd_iceberg") known to Spark."""

from shardd.spark.sinks import IcebergSink as DefaultSource

__all__ = ["DefaultSource"]
