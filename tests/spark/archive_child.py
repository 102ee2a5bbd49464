"""`python -m tests.spark.archive_child SERVER TOPIC PARQUET_ROOT DATA FILES`: what a killed archive run leaves behind.

Does the tasks of the run one after the other, as an executor would, and kills itself with SIGKILL in the middle of the
file behind the first FILES ones.
"""

from __future__ import annotations

import os
import signal
import sys

import pyarrow as pa

from shardd.spark.pipelines import archive
from shardd.spark.pipelines.common import Source
from shardd.spark.sinks.files import ParquetFile


class DeadlyFile(ParquetFile):
    """Writes a row group and dies."""

    def add(self, table: pa.Table) -> None:
        super().add(table)
        os.kill(os.getpid(), signal.SIGKILL)


def main(server: str, topic: str, root: str, data: str, files: str) -> None:
    options = {"servers": server, "username": "iggy", "password": "iggy", "path": data, "maxRecordsPerPartition": "700"}
    jobs, _ = archive.plan(Source(topic, options), archive.Target.parse(root, {}))
    for job in jobs[: int(files)]:
        job.run()
    archive.ParquetFile = DeadlyFile  # type: ignore[attr-defined]
    jobs[int(files)].run()


if __name__ == "__main__":
    main(*sys.argv[1:6])
