"""One server and one Spark session for all tests of this directory: starting them costs more than the tests."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.support import Topic, settle
from tests.support import wire
from tests.support.server import Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Code that runs for minutes does not repay the second compiler, nor threads for its garbage. Drivers that are processes
# of their own inherit it.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from shardd.spark.session import session

    settings = {
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.task.maxFailures": "3",
    }
    made = session("local[2,3]", name="tests", settings=settings)
    made.sparkContext.setLogLevel("ERROR")
    yield made
    made.stop()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Small segments, so that a few thousand messages are sealed."""
    directory: Path = tmp_path_factory.mktemp("server")
    env = {"SHARDD_SYSTEM_SEGMENT_SIZE": "64 KiB", "SHARDD_SYSTEM_PARTITION_SYNC_INTERVAL": "100 ms"}
    with Server(directory / "data", env=env) as running:
        yield running


@pytest.fixture
def topic(server: Server) -> Iterator[Topic]:
    """A fresh topic with two partitions of 3,000 messages each, on the device."""
    name = f"t{time.monotonic_ns()}"
    with wire.connect(server.address) as connection:
        connection.create_topic(connection.create_stream(name), "rows", 2)
        made = Topic(server, name, connection)
        for partition in range(2):
            made.send(partition, 3000)
        settle(made)
        yield made
        connection.delete_stream(name)
