"""Work that Spark only schedules: each task gets one job, does it with the native decoder and pyarrow, and answers one
row. The bytes never enter the JVM. An internal format; `run` is the way to it."""

from __future__ import annotations

import base64
import json
import pickle
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from shardd.spark import python_worker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Job(ABC):
    """One task. Pickled to an executor; must be importable there."""

    @abstractmethod
    def run(self) -> dict[str, Any]:
        """Does the work; the result is what JSON can hold. May run more than once."""


class JobPartition(InputPartition):
    def __init__(self, job: Job) -> None:
        self.job = job


class TaskSource(DataSource):
    """format("shardd_tasks"), option `jobs`: pickled jobs as base64."""

    @classmethod
    def name(cls) -> str:
        return "shardd_tasks"

    def schema(self) -> str:
        return "result string"

    def reader(self, schema: StructType) -> TaskReader:
        return TaskReader(self.options["jobs"])


class TaskReader(DataSourceReader):
    def __init__(self, jobs: str) -> None:
        self._jobs = jobs

    def partitions(self) -> list[InputPartition]:
        return [JobPartition(job) for job in pickle.loads(base64.b64decode(self._jobs))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        python_worker.settle()
        if isinstance(partition, JobPartition):
            result = json.dumps(partition.job.run())
            yield pa.RecordBatch.from_arrays([pa.array([result], pa.string())], ["result"])


def run(spark: SparkSession, jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """Runs all jobs, as many at a time as there are cores; the results in no particular order."""
    if not jobs:
        return []
    packed = base64.b64encode(pickle.dumps(list(jobs))).decode()
    rows = spark.read.format("shardd_tasks").option("jobs", packed).load().collect()
    return [json.loads(row.result) for row in rows]
