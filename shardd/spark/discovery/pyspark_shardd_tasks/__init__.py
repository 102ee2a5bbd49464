"""Makes format("shardd_tasks") known to Spark."""

from shardd.spark.tasks import TaskSource as DefaultSource

__all__ = ["DefaultSource"]
