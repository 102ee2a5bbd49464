"""`python -m tests.demo.spark_driver SERVER TABLE CHECKPOINT PRODUCED ROWS`: the streaming aggregate of the Spark demo.

Flights for each origin and hour: count, sum of the departure delays, exact 95th percentile; into a Delta table, one
overwriting commit for each batch of at most ROWS rows. Runs until the file PRODUCED exists, then once more to the end.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from shardd.spark import session

SCHEMA = "row long, origin string, hour string, dep_delay string"


def aggregate(flights: DataFrame) -> DataFrame:
    """Works on a stream and on a batch."""
    delay = f.expr("try_cast(flight.dep_delay AS int)")
    parsed = flights.select(f.from_json(f.col("value").cast("string"), SCHEMA).alias("flight")).select(
        f.col("flight.origin").alias("origin"), f.col("flight.hour").cast("int").alias("hour"), delay.alias("delay")
    )
    return parsed.groupBy("origin", "hour").agg(
        f.count("*").alias("flights"), f.sum("delay").alias("delay_sum"), f.percentile("delay", 0.95).alias("delay_p95")
    )


def start(
    spark: SparkSession, server: str, table: str, checkpoint: str, rows: str, *, to_the_end: bool
) -> StreamingQuery:
    source = spark.readStream.format("shardd").options(
        servers=server,
        username="iggy",
        password="iggy",
        subscribe="nyc/flights",
        startingOffsets="earliest",
        maxOffsetsPerTrigger=rows,
        columns="value",
    )
    writer = aggregate(source.load()).writeStream.format("shardd_delta").option("path", table)
    writer = writer.option("checkpointLocation", checkpoint).outputMode("complete")
    return (
        writer.trigger(availableNow=True) if to_the_end else writer.trigger(processingTime="500 milliseconds")
    ).start()


def main(server: str, table: str, checkpoint: str, produced: Path, rows: str) -> None:
    spark = session.session("local[2]", name="flights", settings={"spark.sql.shuffle.partitions": "2"})
    spark.sparkContext.setLogLevel("ERROR")
    query = start(spark, server, table, checkpoint, rows, to_the_end=False)
    while not produced.exists() and query.isActive:
        time.sleep(0.1)
    failure = query.exception()
    if failure is not None:
        raise failure
    query.stop()
    query.awaitTermination()
    start(spark, server, table, checkpoint, rows, to_the_end=True).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]), sys.argv[5])
