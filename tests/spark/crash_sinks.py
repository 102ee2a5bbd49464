"""The lake sinks with a commit that kills the driver: formats crash_delta, crash_iceberg, crash_parquet.

The commit runs in a Python process that the JVM starts, so the JVM is its parent and the driver the parent of that.
Options: `when` ("before" or "after" the commit) and `batch`; none of them: an ordinary sink.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.fs as pafs

from shardd.spark.sinks.files import WrittenFile
from shardd.spark.sinks.sink import DeltaSink, IcebergSink, LakeSink, ParquetSink
from shardd.spark.sinks.tables import LakeTable, Step


def kill_the_driver() -> None:
    """SIGKILL for the driver, its JVM and this process."""
    jvm = psutil.Process(os.getppid())
    driver = jvm.parent()
    for each in (driver, jvm, psutil.Process()):
        if each is not None:
            each.kill()


class CrashingTable(LakeTable):
    def __init__(self, inner: LakeTable, when: str, batch: int) -> None:
        self.inner = inner
        self.when = when
        self.batch = batch

    def place(self) -> tuple[pafs.FileSystem, str]:
        return self.inner.place()

    def version(self, application: str) -> int | None:
        return self.inner.version(application)

    def commit(
        self, files: Sequence[WrittenFile], schema: pa.Schema, steps: Sequence[Step], *, overwrite: bool = False
    ) -> bool:
        version = steps[0].version
        if version == self.batch and self.when == "before":
            kill_the_driver()
        done = self.inner.commit(files, schema, steps, overwrite=overwrite)
        if version == self.batch and self.when == "after":
            kill_the_driver()
        return done


def crashing(real: type[LakeSink], kind: str) -> Any:
    """A sink class like `real`, as format crash_<kind>."""

    class Crashing(real):  # type: ignore[misc, valid-type]
        @classmethod
        def name(cls) -> str:
            return f"crash_{kind}"

        @classmethod
        def option_names(cls) -> tuple[str, ...]:
            return (*real.option_names(), "when", "batch")

        def table(self) -> LakeTable:
            inner: LakeTable = super().table()
            return CrashingTable(inner, self.options.get("when", ""), int(self.options.get("batch", "-1")))

    Crashing.__name__ = Crashing.__qualname__ = f"Crash{kind.capitalize()}"
    return Crashing


CrashDelta = crashing(DeltaSink, "delta")
CrashIceberg = crashing(IcebergSink, "iceberg")
CrashParquet = crashing(ParquetSink, "parquet")
SINKS = {"delta": CrashDelta, "iceberg": CrashIceberg, "parquet": CrashParquet}
