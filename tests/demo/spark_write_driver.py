"""`python -m tests.demo.spark_write_driver SERVER DIRECTORY`: the driver of the demo that writes into topics.

Parquet files -> nyc/flights -> flights by origin and hour -> nyc/totals -> a Delta table. May be killed at any time and
started again: what is done is found in checkpoints and in the sink's journals, and the sink stores each row once.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.readwriter import DataStreamReader

from shardd.spark import session
from tests.demo.spark_driver import aggregate

ROW = "row long, origin string, hour string, dep_delay string"
TOTAL = "origin string, hour int, flights long, delay_sum long, delay_p95 double"


def main(server: str, directory: Path) -> None:
    spark = session.session("local[2]", name="flights", settings={"spark.sql.shuffle.partitions": "2"})
    spark.sparkContext.setLogLevel("ERROR")
    place = {"servers": server, "username": "iggy", "password": "iggy"}
    send_flights(spark, place, directory)
    print("totals", flush=True)
    send_totals(spark, place)
    print("table", flush=True)
    fill_table(spark, place, directory)
    spark.stop()


def send_flights(spark: SparkSession, place: dict[str, str], directory: Path) -> None:
    """A file for each batch; nothing is shuffled, so rows keep their positions."""
    files = spark.readStream.schema(ROW).option("maxFilesPerTrigger", 1).parquet(str(directory / "files"))
    rows = files.select(f.to_json(f.struct("*")).alias("value"), f.col("origin").alias("key"))
    start(rows, "shardd", {**place, **topic("nyc/flights"), "order": "source"}, directory / "checkpoint-flights")


def send_totals(spark: SparkSession, place: dict[str, str]) -> None:
    """Sorted behind the shuffle, so that rows have their positions again."""
    totals = aggregate(read(spark.read, place, "nyc/flights"))
    ordered = totals.repartition(2, "origin", "hour").sortWithinPartitions("origin", "hour")
    rows = ordered.select(
        f.to_json(f.struct("*")).alias("value"), f.concat_ws(" ", "origin", "hour").alias("key"), "origin", "hour"
    )
    options = {**place, **topic("nyc/totals"), "order": "origin,hour", "appId": "totals of nyc/flights"}
    rows.write.format("shardd").options(**options).mode("append").save()


def fill_table(spark: SparkSession, place: dict[str, str], directory: Path) -> None:
    totals = read(spark.readStream, place, "nyc/totals")
    rows = totals.select(f.from_json(f.col("value").cast("string"), TOTAL).alias("total")).select("total.*")
    start(rows, "shardd_delta", {"path": str(directory / "delta")}, directory / "checkpoint-table")


def topic(name: str) -> dict[str, str]:
    return {"topic": name, "createTopic": "4", "semantics": "idempotent", "batchBytes": "64 KiB"}


def read(reader: DataFrameReader | DataStreamReader, place: dict[str, str], name: str) -> DataFrame:
    given = {**place, "subscribe": name, "startingOffsets": "earliest", "columns": "value", "isolation": "visible"}
    return reader.format("shardd").options(**given).load()


def start(rows: DataFrame, kind: str, options: dict[str, str], checkpoint: Path) -> None:
    """To the end of what there is."""
    writer = rows.writeStream.format(kind).options(**options).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
