"""`python -m bench.spark.child first-row|one-row|memory OPTIONS`: measurements that need a process of their own.

OPTIONS is JSON: the options of the source. `first-row` prints a line as soon as it has a row, `one-row` does so with a
source that asks nobody; `memory` reads all offsets and prints what the driver needed as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psutil
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from shardd.spark import session

HEAP: Final = "512m"  # the same for both sizes; Spark starts with no less than 450 MiB


def main(what: str, options: dict[str, str]) -> None:
    settings = {"spark.driver.memory": HEAP} if what == "memory" else {}
    spark = session.session("local[2]", name=f"bench {what}", settings=settings)
    spark.sparkContext.setLogLevel("ERROR")
    if what == "one-row":
        spark.dataSource.register(OneRow)
        frame = spark.read.format("one_row").load()
    else:
        frame = spark.read.format("shardd").options(**options).load()
    if what != "memory":
        print(frame.limit(1).count(), flush=True)
    else:
        tasks = frame.rdd.getNumPartitions()
        rows, last = frame.selectExpr("count(*)", "max(offset)").collect()[0]
        print(json.dumps({"rows": rows, "last": last, "tasks": tasks, **driver_memory(spark)}), flush=True)
    spark.stop()


class OneRow(DataSource):
    """format("one_row"): the least that a Python source can do."""

    @classmethod
    def name(cls) -> str:
        return "one_row"

    def schema(self) -> str:
        return "offset bigint"

    def reader(self, schema: StructType) -> OneRowReader:
        return OneRowReader()


class OneRowReader(DataSourceReader):
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"offset": pa.array([0], pa.int64())})


def driver_memory(spark: Any) -> dict[str, float]:
    """MiB: peak of the driver's Python, peak of the JVM's memory, and what its heap holds after a collection."""
    jvm = spark._jvm
    jvm.java.lang.System.gc()
    heap = jvm.java.lang.management.ManagementFactory.getMemoryMXBean().getHeapMemoryUsage().getUsed()
    java = next(each for each in psutil.Process().children() if each.name() == "java")
    return {
        "python_mib": peak_mib(Path("/proc/self/status").read_text()),
        "jvm_peak_mib": peak_mib(Path(f"/proc/{java.pid}/status").read_text()),
        "heap_mib": heap / 2**20,
    }


def peak_mib(status: str) -> float:
    """VmHWM of /proc/<pid>/status (ru_maxrss would begin with the size of the process that forked this one)."""
    line = next(each for each in status.splitlines() if each.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
