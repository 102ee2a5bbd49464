"""Spark's Python processes: what they do between two tasks costs nothing for what never goes."""

from __future__ import annotations

import gc
import inspect
import os
import subprocess
import sys
from typing import Any

import pytest
from pyspark import daemon
from pyspark.sql import SparkSession

from shardd.spark import tasks

FROZEN = "import gc; from shardd.spark import python_worker as w; w.settle(); print(gc.get_freeze_count())"


class LookJob(tasks.Job):
    """What a task sees of the process that runs it."""

    def run(self) -> dict[str, Any]:
        return {"process": os.getpid(), "kept": gc.get_freeze_count(), "collected": len(gc.get_objects())}


def test_tasks_leave_out_what_never_goes(spark: SparkSession) -> None:
    found = tasks.run(spark, [LookJob(), LookJob()])
    assert all(each["process"] != os.getpid() for each in found)
    for each in found:
        assert each["kept"] > 10_000, each


def test_spark_collects_behind_every_task() -> None:
    """Else `settle` is needless; and it looks for the variable that Spark's daemon looks for."""
    source = inspect.getsource(daemon.manager)
    assert "gc.collect()" in source and 'os.environ.get("SPARK_REUSE_WORKER")' in source


@pytest.mark.parametrize("kept", [True, False])
def test_a_process_of_somebody_else_is_left_alone(kept: bool) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "SPARK_REUSE_WORKER"}
    environment |= {"SPARK_REUSE_WORKER": "1"} if kept else {}
    done = subprocess.run([sys.executable, "-c", FROZEN], env=environment, capture_output=True, text=True, check=True)
    assert (int(done.stdout) > 1000) is kept
