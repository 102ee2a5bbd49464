"""`python -m tests.spark.sink_child KIND SERVER STREAM DIRECTORY [WHEN BATCH]`: one AvailableNow run into a lake table.

With WHEN ("before" or "after") the driver is killed with SIGKILL around the commit of that batch.
"""

from __future__ import annotations

import sys
from pathlib import Path

from shardd.spark import session
from tests.spark.crash_sinks import SINKS

ROWS_PER_BATCH = 1500  # four batches of a topic: each starts several processes


def options_of(kind: str, directory: Path) -> dict[str, str]:
    """Of the sink; the same for every run."""
    if kind != "iceberg":
        return {"path": str(directory / "table")}
    catalog = {"catalog.type": "sql", "catalog.uri": f"sqlite:///{directory}/catalog.db"}
    return {**catalog, "catalog.warehouse": f"file://{directory}/warehouse", "table": "space.rows"}


def main(kind: str, server: str, stream: str, directory: Path, when: str, batch: str) -> None:
    spark = session.session("local[2]", name="sink", settings={"spark.sql.shuffle.partitions": "2"})
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(SINKS[kind])
    source = spark.readStream.format("shardd").options(
        servers=server,
        username="iggy",
        password="iggy",
        subscribe=f"{stream}/rows",
        startingOffsets="earliest",
        maxOffsetsPerTrigger=str(ROWS_PER_BATCH),
        columns="partition,offset,value",
    )
    writer = source.load().writeStream.format(f"crash_{kind}").options(**options_of(kind, directory))
    if when:
        writer = writer.option("when", when).option("batch", batch)
    writer = writer.option("checkpointLocation", str(directory / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    given = [*sys.argv[1:], "", ""]
    main(given[0], given[1], given[2], Path(given[3]), given[4], given[5])
