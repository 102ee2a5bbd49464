"""Makes format("shardd_parquet") known to Spark."""

from shardd.spark.sinks import ParquetSink as DefaultSource

__all__ = ["DefaultSource"]
