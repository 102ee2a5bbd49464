"""Spark's Python processes: what they do between two tasks costs nothing for what never goes."""

from __future__ import annotations

import gc
import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark import daemon
from pyspark.sql import SparkSession

from shardd.log import layout
from shardd.log.incarnation import write_incarnation
from shardd.spark import tasks
from tests.spark.records import Row, segment

FROZEN = "import gc; from shardd.spark import python_worker as w; w.settle(); print(gc.get_freeze_count())"

READ = """
import sys
from pathlib import Path
import pyarrow as pa
from shardd.spark import cold, reading, source
from shardd.spark.columns import ALL, default_names
from shardd.spark.decode import Decoder
for names, key in ((default_names(), None), (tuple(ALL), "k")):
    decoder = Decoder(names, stream="s", topic="t", partition=0, key_header=key)
    parts = cold.read(decoder, Path(sys.argv[1]), segment_start=0, incarnation=7, start=0, end=3, label="p")
    print(sum(batch.num_rows for batch in parts), "pandas" in sys.modules)
pa.scalar(1)
print("pandas" in sys.modules)
"""


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


def test_who_reads_rows_does_not_load_pandas(tmp_path: Path) -> None:
    """pyarrow does it for `pa.scalar` and `pa.array`: 0.2 s, and 33,000 objects to look at behind every task."""
    directory = tmp_path / "0"
    directory.mkdir()
    write_incarnation(directory, 7)
    data, index = segment([Row(n, b"value", ((b"k", b"key"),)) for n in range(3)])
    layout.segment_log(directory, 0).write_bytes(data)
    layout.segment_index(directory, 0).write_bytes(index)
    command = [sys.executable, "-c", READ, str(layout.segment_log(directory, 0))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    read, and_all, by_pyarrow = done.stdout.splitlines()
    assert (read, and_all) == ("3 False", "3 False")
    assert by_pyarrow == "True"  # else nobody needs to take care
