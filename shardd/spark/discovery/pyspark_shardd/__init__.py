"""Spark looks for data sources in modules whose names begin with `pyspark_`: this one makes format("shardd") known."""

from shardd.spark.source import ShardDataSource as DefaultSource

__all__ = ["DefaultSource"]
