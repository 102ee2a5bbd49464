"""Lake sinks that need no JVM jar: tasks write Parquet files with pyarrow, the driver commits them once."""

from shardd.spark.sinks.sink import DeltaSink, IcebergSink, ParquetSink

__all__ = ["DeltaSink", "IcebergSink", "ParquetSink"]
