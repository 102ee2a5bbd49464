"""What a task knows about itself. Spark has no public names for the properties; tests/spark guards them."""

from __future__ import annotations

from pyspark import TaskContext


def query_of_task() -> tuple[str, str]:
    """(query id, batch id) of the streaming batch that this task belongs to; ("", "") outside of one."""
    context = TaskContext.get()
    if context is None:
        return "", ""
    query = context.getLocalProperty("sql.streaming.queryId") or ""
    return query, context.getLocalProperty("streaming.sql.batchId") or ""


def run_of_task() -> str:
    """The id of the start of the streaming query, another one with each start; "" outside of one."""
    context = TaskContext.get()
    return (context.getLocalProperty("spark.jobGroup.id") or "") if context is not None else ""


def task_number() -> int:
    """The number of the task in its batch; 0 outside of one."""
    context = TaskContext.get()
    return context.partitionId() if context is not None else 0
