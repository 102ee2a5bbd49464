"""`python -m tests.spark.cluster`: the source, the archive and a streaming sink on a real standalone cluster.

A master and two workers of one core each run on this machine as processes of their own; the installed package is what
the executors import. Exit status 1 on any difference.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import pyarrow.parquet as pq
from deltalake import DeltaTable

from shardd.spark import session
from shardd.spark.pipelines import archive, audit
from tests.spark.support import Topic, settle, source_of
from tests.support import wire
from tests.support.ports import free_port
from tests.support.server import Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WORKERS: Final = 2
START_TIMEOUT_S: Final = 60.0
STREAM_TIMEOUT_S: Final = 120
STOP_TIMEOUT_S: Final = 20.0
SETTINGS: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
}


class Cluster:
    """A master and its workers; a context manager."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._processes: list[subprocess.Popen[bytes]] = []
        self.master = f"spark://127.0.0.1:{free_port()}"

    def __enter__(self) -> Self:
        import pyspark

        session.prepare_environment()
        # executors find everything as an installed package, as on another machine
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        program = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
        port = self.master.rpartition(":")[2]
        base = [program, "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1"]
        self._start("master", [*base, "--port", port, "--webui-port", "0"], environment)
        for number in range(WORKERS):
            work = str(self._directory / f"work-{number}")
            base = [program, "org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--webui-port", "0"]
            one = ["--cores", "1", "--memory", "1g", "--work-dir", work, self.master]
            self._start(f"worker-{number}", [*base, *one], environment)
        self._wait()
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self, name: str, command: list[str], environment: dict[str, str]) -> None:
        with (self._directory / f"{name}.log").open("wb") as log:
            self._processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))

    def _wait(self) -> None:
        log, deadline = self._directory / "master.log", time.monotonic() + START_TIMEOUT_S
        while log.read_text(errors="replace").count("Registering worker") < WORKERS:
            if time.monotonic() > deadline or any(each.poll() is not None for each in self._processes):
                self.__exit__()
                logs = (each.read_text(errors="replace")[-1500:] for each in sorted(self._directory.glob("*.log")))
                raise RuntimeError("the cluster did not start:\n" + "\n".join(logs))
            time.sleep(0.1)


def check(spark: SparkSession, topic: Topic, directory: Path) -> dict[str, Any]:
    """AssertionError when anything differs from what was sent."""
    data = str(topic.server.data_dir)
    for mode, options in (("cold", {"path": data, "maxRecordsPerPartition": "500"}), ("live", {"readMode": "live"})):
        frame = session.read(spark, topic.name, columns="partition,offset,value", **source_of(topic, **options).options)
        rows = Counter((row.partition, row.offset, bytes(row.value)) for row in frame.collect())
        assert set(rows) == topic.rows() and max(rows.values()) == 1, f"{mode} read differs"
    source = source_of(topic, path=data)
    made = archive.archive(spark, source, archive.Target.parse(f"parquet:{directory / 'archive'}", {}))
    files = (directory / "archive").rglob("*.parquet")
    stored = sum(pq.ParquetFile(each).metadata.num_rows for each in files)
    assert made["rows"] == stored == len(topic.rows()), "the archive differs"
    assert audit.audit(spark, source, str(directory / "archive"))["faults"] == 0
    reader = spark.readStream.format("shardd").options(**topic.options(columns="partition,offset,value", path=data))
    query = (
        reader.option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "2000")
        .load()
        .writeStream.format("shardd_delta")
        .option("path", str(directory / "table"))
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(STREAM_TIMEOUT_S), "the stream does not end"
    table = DeltaTable(directory / "table").to_pyarrow_table()
    columns = (table.column(name).to_pylist() for name in ("partition", "offset", "value"))
    rows = Counter(zip(*columns, strict=True))
    assert set(rows) == topic.rows() and max(rows.values()) == 1, "the table differs"
    jvm: Any = spark.sparkContext._jsc
    executors = jvm.sc().getExecutorMemoryStatus().size() - 1  # one of them is the driver
    return {"executors": executors, "rows": len(rows), "files": made["files"]}


def main() -> int:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="shardd-cluster-") as name, ExitStack() as end:
        directory = Path(name)
        server = end.enter_context(Server(directory / "data", env={"SHARDD_SYSTEM_SEGMENT_SIZE": "64 KiB"}))
        connection = end.enter_context(wire.connect(server.address))
        connection.create_topic(connection.create_stream("cluster"), "rows", 2)
        topic = Topic(server, "cluster", connection)
        for partition in range(2):
            topic.send(partition, 3000)
        settle(topic)
        cluster = end.enter_context(Cluster(directory))
        spark = session.session(cluster.master, name="cluster", settings=SETTINGS)
        end.callback(spark.stop)
        spark.sparkContext.setLogLevel("ERROR")
        result = check(spark, topic, directory)
    print(f"{result}, {time.monotonic() - began:.0f} s")
    if result["executors"] != WORKERS:
        print(f"{WORKERS} executors expected", file=sys.stderr)
        return 1
    print("equality: cold, live, archive and stream = what was sent")
    return 0


if __name__ == "__main__":
    sys.exit(main())
