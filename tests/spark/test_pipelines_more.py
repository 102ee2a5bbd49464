"""aggregate, export, latency and lag on a real session and a real server; results are compared with plain Python."""

from __future__ import annotations

import csv
import json
import math
import re
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from shardd.spark.pipelines import aggregate, export, lag, latency
from shardd.spark.pipelines.aggregate import Aggregation
from shardd.spark.pipelines.common import Meter, PipelineError
from tests.spark.support import Topic, header, settle, source_of
from tests.support import wire
from tests.support.wide import wide, wide_but

ORDERS = 600


@pytest.fixture
def orders(topic: Topic) -> Topic:
    """JSON with a user header, behind the rows of the topic, from offset 3000 of partition 0 on; each was made 1 to 50
    milliseconds before it was sent."""
    batch, now_us = [], time.time_ns() // 1000
    for n in range(ORDERS):
        payload = json.dumps({"n": n, "price": (n * 7) % 101, "shop": f"s{n % 3}"}).encode()
        topic.payloads[0].append(payload)
        origin_us = now_us - 1000 * (1 + n % 50)
        batch.append(wire.message(payload, header("kind", f"k{n % 4}"), origin_timestamp_us=origin_us))
    topic.connection.send(topic.stream, "rows", wire.to_partition(0), batch)
    settle(topic)
    return topic


def only_orders(topic: Topic) -> dict[str, str]:
    return {"startingOffsets": json.dumps({topic.name: {"0": 3000, "1": 3000}})}


def expected(key: str) -> dict[str, list[int]]:
    """Prices by shop or by kind."""
    prices = defaultdict(list)
    for n in range(ORDERS):
        prices[f"s{n % 3}" if key == "shop" else f"k{n % 4}"].append((n * 7) % 101)
    return dict(prices)


# ---- aggregate ----


@pytest.mark.parametrize(("by", "label"), [("json:$.shop", "shop"), wide("header:kind", "kind")])
def test_a_batch_aggregate_equals_plain_python(spark: SparkSession, orders: Topic, by: str, label: str) -> None:
    wanted = Aggregation.parse(None, by, "count,sum,avg,min,max,p50,bytes", "json:$.price")
    result = aggregate.run_batch(spark, source_of(orders, **only_orders(orders)), wanted, None)["result"]
    found = {row[label]: row for row in result}
    assert set(found) == set(expected(label))
    for key, prices in expected(label).items():
        row = found[key]
        assert (row["count"], row["sum"], row["min"], row["max"]) == (
            len(prices),
            sum(prices),
            min(prices),
            max(prices),
        )
        assert row["p50"] == np.percentile(prices, 50) and math.isclose(row["avg"], sum(prices) / len(prices))
        assert row["bytes"] > 0


def test_windows_hold_every_message_once(spark: SparkSession, topic: Topic, tmp_path: Path) -> None:
    table = str(tmp_path / "windows")
    wanted = Aggregation.parse("100ms", "partition", "count", "length")
    aggregate.run_batch(spark, source_of(topic), wanted, table)
    rows = DeltaTable(table).to_pyarrow_table().to_pylist()
    assert sum(row["count"] for row in rows) == 6000 and {row["partition"] for row in rows} == {0, 1}
    assert all((row["window_end"] - row["window_start"]).total_seconds() == 0.1 for row in rows)
    aggregate.run_batch(spark, source_of(topic), wanted, table)
    assert len(DeltaTable(table).to_pyarrow_table()) == len(rows), "a second run exchanges the rows"


def test_a_streaming_aggregate_goes_on_where_it_was(spark: SparkSession, topic: Topic, tmp_path: Path) -> None:
    table, checkpoint = str(tmp_path / "table"), tmp_path / "checkpoint"
    wanted = Aggregation.parse(None, "partition", "count,bytes", "length")

    def run() -> int:
        more: dict[str, Any] = {"checkpoint": checkpoint, "watermark": "10s", "follow": False}
        return int(aggregate.run_stream(spark, source_of(topic), wanted, table, **more)["rows"])

    def rows() -> dict[int, tuple[int, int]]:
        found = DeltaTable(table).to_pyarrow_table().to_pylist()
        return {row["partition"]: (row["count"], row["bytes"]) for row in found}

    assert run() == 6000
    assert rows() == {p: (len(each), sum(map(len, each))) for p, each in topic.payloads.items()}
    topic.send(1, 700)
    settle(topic)
    assert run() == 700, "only what is new is read"
    assert rows() == {p: (len(each), sum(map(len, each))) for p, each in topic.payloads.items()}
    found = {each.partition: each for each in lag.of_readers(source_of(topic), [], [], [checkpoint])}
    assert [found[p].position for p in (0, 1)] == [3000, 3700] and {each.messages for each in found.values()} == {0}
    topic.send(0, 40)
    assert sum(each.messages for each in lag.of_readers(source_of(topic), [], [], [checkpoint])) == 40


def test_finished_windows_are_appended_by_a_stream(spark: SparkSession, topic: Topic, tmp_path: Path) -> None:
    time.sleep(1.2)  # the last message ends the windows of the others
    topic.send(0, 1)
    settle(topic)
    wanted = Aggregation.parse("1s", None, "count", "length")
    more: dict[str, Any] = {"checkpoint": tmp_path / "c", "watermark": "0s", "follow": False}
    aggregate.run_stream(spark, source_of(topic), wanted, str(tmp_path / "t"), **more)
    rows = DeltaTable(tmp_path / "t").to_pyarrow_table().to_pylist()
    assert sum(row["count"] for row in rows) == 6000


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("10s", None, "mean", "length"), "--agg has 'mean'"),
        (("10", None, "count", "length"), "--window is '10'"),
        ((None, "user", "count", "length"), "'user' is no field"),
        ((None, None, ",", "length"), "names no function"),
    ],
)
def test_a_wrong_aggregate_is_named(arguments: tuple[Any, ...], text: str) -> None:
    with pytest.raises(PipelineError, match=re.escape(text)):
        Aggregation.parse(*arguments)


# ---- export ----


@pytest.mark.parametrize("kind", wide_but(["json"], export.FORMATS))
def test_export_writes_what_the_statement_says(spark: SparkSession, orders: Topic, tmp_path: Path, kind: str) -> None:
    view, target = export.view_name(orders.name), tmp_path / "out"
    export.register_views(spark, {view: source_of(orders, **only_orders(orders))})
    price = "cast(get_json_object(cast(value AS string), '$.price') AS bigint)"
    made = export.export(spark, f"SELECT offset, {price} AS price FROM {view}", target, kind)
    assert made["rows"] == ORDERS
    assert exported(target, kind) == {3000 + n: (n * 7) % 101 for n in range(ORDERS)}
    with pytest.raises(PipelineError, match="exists already"):
        export.export(spark, "SELECT 1", target, kind)


def exported(target: Path, kind: str) -> dict[int, int]:
    files = [each for each in target.iterdir() if each.suffix == f".{kind}"]
    if kind == "parquet":
        rows = [row for each in files for row in pq.ParquetFile(each).read().to_pylist()]
    elif kind == "json":
        rows = [json.loads(line) for each in files for line in each.read_text().splitlines()]
    else:
        rows = [row for each in files for row in csv.DictReader(each.read_text().splitlines())]
    assert len({int(row["offset"]) for row in rows}) == len(rows)
    return {int(row["offset"]): int(row["price"]) for row in rows}


def test_a_wrong_export_is_one_sentence(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="cannot be run"):
        export.export(spark, "SELEKT 1", tmp_path / "a", "csv")
    with pytest.raises(PipelineError, match="--format is 'xml'"):
        export.export(spark, "SELECT 1", tmp_path / "a", "xml")


# ---- latency ----


def test_latency_of_a_topic_is_append_time_minus_the_producers(
    spark: SparkSession, orders: Topic, tmp_path: Path
) -> None:
    (run,) = latency.from_topic(spark, source_of(orders))
    messages = [each for each in orders.connection.read_all(orders.stream, "rows", 0) if each.origin_timestamp_us]
    figures = [each.timestamp_us - each.origin_timestamp_us for each in messages]
    assert (run.name, run.count, run.max_us) == ("partition 0", ORDERS, max(figures))
    assert run.mean_us is not None and math.isclose(run.mean_us, sum(figures) / ORDERS)
    assert math.isclose(run.percentiles[50.0], float(np.percentile(figures, 50)))
    page = tmp_path / "page.html"
    made = latency.latency([run], page, orders.name, Meter("latency", None))
    assert made["runs"][0]["count"] == ORDERS and page.read_text().count("data:image/png;base64,") == 1
    assert [each["us"] for each in run.outliers] == sorted(figures, reverse=True)[: len(run.outliers)]


def test_latency_of_a_topic_without_the_producers_times_is_refused(spark: SparkSession, topic: Topic) -> None:
    with pytest.raises(PipelineError, match="no message with a producer's time"):
        latency.from_topic(spark, source_of(topic))


def test_latency_of_files(tmp_path: Path) -> None:
    plain, timed = tmp_path / "plain.txt", tmp_path / "timed.jsonl"
    plain.write_text("".join(f"{n}\n" for n in range(1, 1001)))
    timed.write_text("".join(json.dumps({"us": n, "at_us": 10_000 * n}) + "\n" for n in range(1, 301)))
    first, second = latency.from_files([plain, timed])
    assert [first.percentiles[p] for p in (50.0, 99.0, 99.9)] == [500, 990, 999] and first.max_us == 1000
    assert [(each[0], each[1]) for each in second.seconds] == [(0, 100), (1, 100), (2, 100)]
    page = tmp_path / "page.html"
    latency.latency([first, second], page, "two runs", Meter("latency", None))
    assert page.read_text().count("data:image/png;base64,") == 2 and "(0.30x)" in page.read_text()


def test_latency_of_the_benchmarks_report(tmp_path: Path) -> None:
    """As bench/__main__.py writes it; bench/tests holds the names of the keys."""
    rounds = [
        {"requests": 10.0, "p50_us": 5.0 * n, "p99_us": 9.0 * n, "p999_us": 20.0 * n, "max_us": 30.0 * n}
        for n in (1, 2, 3)
    ]
    cells = {"floor": {"rounds": rounds, "error": None}, "shardd": {"rounds": [], "error": "failed"}}
    file = tmp_path / "report.json"
    file.write_text(json.dumps({"header": {}, "lines": {"send-1x100-c1": cells}}, indent=1))
    (run,) = latency.from_files([file])
    assert (run.name, run.count, run.max_us, run.mean_us) == ("send-1x100-c1 floor", 30, 90.0, None)
    assert run.percentiles == {50.0: 10.0, 99.0: 18.0, 99.9: 40.0}
    latency.latency([run], tmp_path / "page.html", "report", Meter("latency", None))
    assert "<td>-</td>" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("1\nfast\n", "line 2 is neither a number nor JSON"),
        ("", "has no figures"),
        ('{"us": 1, "at_us": 1}\n{"us": 2}\n', "some lines have"),
        ('{"lines": {"a": {"floor": {"rounds": [{}]}}}}', "is no report of the benchmark"),
    ],
)
def test_a_file_without_latencies_is_named(tmp_path: Path, content: str, text: str) -> None:
    file = tmp_path / "figures"
    file.write_text(content)
    with pytest.raises(PipelineError, match=text):
        latency.from_files([file])


# ---- lag ----


def test_lag_of_named_consumers(topic: Topic) -> None:
    topic.connection.store_offset(topic.stream, "rows", 0, 999, who="reader")
    found = lag.of_readers(source_of(topic), ["reader", "nobody"], [], [])
    assert {(e.reader, e.partition, e.position, e.messages) for e in found} == {
        ("reader", 0, 1000, 2000),
        ("reader", 1, None, 3000),
        ("nobody", 0, None, 3000),
        ("nobody", 1, None, 3000),
    }


def test_lag_in_seconds_is_the_age_of_the_first_message_that_is_not_read(topic: Topic) -> None:
    """Readers at the end have none; one that is further behind has no less."""
    for partition in range(2):
        topic.connection.store_offset(topic.stream, "rows", partition, 2999, who="done")
    topic.connection.store_offset(topic.stream, "rows", 0, 1499, who="half")
    now_us = time.time_ns() // 1000
    with wire.connect(topic.server.address) as connection:
        stored_us = {
            n: connection.poll(topic.stream, "rows", 0, value=n, count=1).messages[0].timestamp_us for n in (0, 1500)
        }
    found = lag.of_readers(source_of(topic), ["done", "half", "new"], [], [])
    by = {(each.reader, each.partition): each.seconds for each in found}
    assert by["done", 0] == by["done", 1] == 0.0
    assert by["half", 0] >= (now_us - stored_us[1500]) / 1e6 - 0.001
    assert by["new", 0] >= (now_us - stored_us[0]) / 1e6 - 0.001 and by["new", 0] >= by["half", 0]
    totals = {each["reader"]: each for each in lag.totals(found)}
    assert totals["half"]["messages"] == 1500 + 3000 and totals["done"] == {
        "reader": "done",
        "messages": 0,
        "seconds": 0.0,
    }
    assert totals["new"]["seconds"] == max(by["new", 0], by["new", 1])


def test_lag_of_what_is_no_checkpoint_is_refused(topic: Topic, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="is no checkpoint of a streaming query"):
        lag.of_readers(source_of(topic), [], [], [tmp_path])
    (tmp_path / "commits").mkdir()
    (tmp_path / "offsets").mkdir()
    with pytest.raises(PipelineError, match="no finished batch yet"):
        lag.of_readers(source_of(topic), [], [], [tmp_path])
    (tmp_path / "commits" / "0").touch()
    (tmp_path / "offsets" / "0").write_text('v1\n{}\n{"topic":{"0":5}}')
    with pytest.raises(PipelineError, match="no checkpoint of the source shardd"):
        lag.of_readers(source_of(topic), [], [], [tmp_path])
