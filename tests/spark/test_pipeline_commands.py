"""`shardd pipeline` in this process: the examples of docs/spark.md as they stand there, and what goes wrong."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from shardd.cli.main import app
from tests.spark.support import Topic, flip, header, segment_path, settle
from tests.support import wire
from tests.support.server import Server

DOCUMENT = Path(__file__).parents[2] / "docs" / "spark.md"
ROWS = 1500
PIPELINES = {
    "archive", "audit", "aggregate", "compact", "copy", "dedup", "export", "sql", "latency", "lag", "replay", "vacuum",
}  # fmt: skip


@pytest.fixture
def shop(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Topic]:
    """shop/orders as the document has it."""
    for name, value in (("SERVERS", server.address), ("USERNAME", "iggy"), ("PASSWORD", "iggy")):
        monkeypatch.setenv(f"SHARDD_{name}", value)
    with wire.connect(server.address) as connection:
        connection.create_topic(connection.create_stream("shop"), "orders", 2)
        topic = Topic(server, "shop", connection, topic="orders")
        for partition in range(2):
            batch = []
            for n in range(ROWS):
                payload = json.dumps({"shop": f"s{n % 3}", "price": n % 100}).encode()
                topic.payloads.setdefault(partition, []).append(payload)
                made_us = time.time_ns() // 1000 - 1000
                batch.append(wire.message(payload, header("kind", f"k{n % 2}"), origin_timestamp_us=made_us))
            for first in range(0, ROWS, 300):
                connection.send("shop", "orders", wire.to_partition(partition), batch[first : first + 300])
        settle(topic)
        yield topic
        connection.delete_stream("shop")


def examples() -> list[list[str]]:
    """Words behind `shardd` of every command in the blocks marked `sh`."""
    blocks = re.findall(r"```sh\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line)[1:] for line in lines if line.strip()]


def test_the_programs_of_the_document_work(spark: SparkSession, shop: Topic, tmp_path: Path) -> None:
    """The blocks marked `python`, one after the other, as one program."""
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    program = "".join(blocks).replace("/lake", str(tmp_path))
    program = program.replace('who = {"', f'who = {{"servers": "{shop.server.address}", "')
    assert len(blocks) == 5
    try:
        exec(compile(program, str(DOCUMENT), "exec"), {})
    finally:
        spark.catalog.dropTempView("orders")
    assert DeltaTable(str(tmp_path / "orders")).count() == 2 * ROWS
    with wire.connect(shop.server.address) as connection:
        paid = [each.payload for n in range(4) for each in connection.read_all("shop", "paid", n)]
        totals = [json.loads(each.payload) for n in range(4) for each in connection.read_all("shop", "totals", n)]
    assert sorted(paid) == sorted(each for found in shop.payloads.values() for each in found)
    assert sorted(totals, key=str) == [{"partition": n, "count": ROWS} for n in range(2)]


def run(*words: str, stdin: str | None = None) -> Result:
    """The session of this process is older than the variables of `shop`, and Spark plans in processes that inherited
    the older ones: what needs the server says who it is."""
    if "shop/orders" in words and "lag" not in words:
        flag = "--to-option" if "replay" in words else "-o"
        words = (*words, flag, "username=iggy", flag, "password=iggy")
    return CliRunner().invoke(app, list(words), input=stdin)


def last(result: Result) -> dict[str, object]:
    """The summary."""
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout.splitlines()[-1])
    assert isinstance(found, dict)
    return found


def refused(result: Result, text: str) -> None:
    """One sentence on stderr, exit status 1, no traceback."""
    assert result.exit_code == 1, result.output
    said = [line for line in result.stderr.splitlines() if line.startswith("shardd: ")]
    assert len(said) == 1 and text in said[0], result.stderr
    assert "Traceback" not in result.stderr


def test_every_pipeline_has_an_example() -> None:
    assert {words[1] for words in examples()} == PIPELINES


def test_the_examples_of_the_document_work(spark: SparkSession, shop: Topic, tmp_path: Path) -> None:
    """In their order, one after the other."""
    shop.connection.store_offset("shop", "orders", 0, 99, who="billing")
    figures = tmp_path / "figures.json"
    rounds = [{"requests": 10, "p50_us": 5.0, "p99_us": 9.0, "p999_us": 20.0, "max_us": 30.0}]
    figures.write_text(json.dumps({"lines": {"send-1x100-c1": {"floor": {"rounds": rounds}}}}))
    places = (("/lake", str(tmp_path)), ("/var/lib/shardd", str(shop.server.data_dir)))
    done = []
    for words in examples():
        for name, place in (*places, ("bench/results/figures.json", str(figures))):
            words = [each.replace(name, place) for each in words]
        done.append((words[1], last(run(*words))))
    archives = [each for name, each in done if name == "archive"]
    assert [each["rows"] for each in archives] == [2 * ROWS] * 4, "a dry run and three archives"
    by_name = dict(done)
    assert by_name["audit"]["rows"] == 4 * ROWS and by_name["export"]["rows"] == 2 * ROWS
    assert [each["rows"] for name, each in done if name == "copy"] == [2 * ROWS]
    assert by_name["replay"]["rows"] == by_name["dedup"]["rows"] == 2 * ROWS and by_name["compact"]["rows"] == 3
    assert by_name["lag"]["messages"] == ROWS - 100 + ROWS, "the consumer is behind, the checkpoint is not"
    sums = next(each["result"] for name, each in done if name == "aggregate")
    assert {row["shop"]: row["count"] for row in sums} == dict.fromkeys(("s0", "s1", "s2"), 2 * ROWS // 3)  # type: ignore[attr-defined]
    assert (tmp_path / "latency.html").exists() and (tmp_path / "bench.html").exists()


def test_statements_from_stdin(spark: SparkSession, shop: Topic) -> None:
    text = "SELECT max(offset) AS last FROM shop_orders;\nSELECT count(*) AS rows FROM shop_orders;\n"
    result = run("pipeline", "sql", "shop/orders", stdin=text)
    assert last(result)["statements"] == 2
    assert f"|{ROWS - 1}" in result.stdout and f"|{2 * ROWS}" in result.stdout


def test_what_is_wrong_is_said_before_a_session_starts(tmp_path: Path, shop: Topic) -> None:
    at = ("pipeline", "archive", "shop/orders", "--to")
    target = f"parquet:{tmp_path}"
    refused(run(*at, "csv:/tmp"), "--to is 'csv:/tmp', but must be parquet:DIR")
    refused(run(*at, "iceberg:a.b"), "--catalog warehouse=")
    refused(run(*at, target, "-o", "pth=x", "--dry-run"), "did you mean 'path'?")
    refused(run(*at, target, "-o", "path", "--dry-run"), "must be name=value")
    refused(run(*at, target, "-o", "verifyChecksums=false", "--dry-run"), "archive verifies every checksum")
    refused(run("pipeline", "archive", "shop/nothing", "--to", target, "--dry-run"), "there is no topic 'shop/nothing'")
    refused(run("pipeline", "lag", "nothing/orders", "--consumer", "a"), "there is no stream 'nothing'")
    refused(run("pipeline", "lag", "shop/orders"), "name a reader")
    refused(run("pipeline", "lag", "shop/orders", "--checkpoint", str(tmp_path)), "is no checkpoint")
    refused(run("pipeline", "latency"), "needs either files or --from-topic")
    refused(run("pipeline", "latency", str(tmp_path / "no")), "cannot be read")
    refused(run("pipeline", "aggregate", "shop/orders", "--stream"), "needs --to delta:DIR")
    refused(run("pipeline", "aggregate", "shop/orders", "--agg", "mode"), "--agg has 'mode'")
    refused(run("pipeline", "vacuum", "orc:/tmp"), "vacuum knows delta:, iceberg: and parquet:")
    refused(run("pipeline", "vacuum", f"delta:{tmp_path}"), "is no Delta table")


def test_a_server_that_does_not_answer_and_wrong_credentials(
    tmp_path: Path, shop: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = ("--servers", "127.0.0.1:1", "-o", "fetchOffset.numRetries=0")
    refused(run("pipeline", "lag", "shop/orders", "--consumer", "a", *away), "no server of 127.0.0.1:1 answers")
    monkeypatch.setenv("SHARDD_PASSWORD", "wrong")
    refused(run("pipeline", "lag", "shop/orders", "--consumer", "a"), "refuses the credentials")


def test_faults_inside_of_spark_are_one_sentence(spark: SparkSession, shop: Topic, tmp_path: Path) -> None:
    bad = run("pipeline", "sql", "shop/orders", "--execute", "SELECT nothing FROM shop_orders")
    refused(bad, "the statement cannot be run")
    flip(segment_path(shop, 1, 0), -1)
    data = f"path={shop.server.data_dir}"
    refused(run("pipeline", "archive", "shop/orders", "--to", f"parquet:{tmp_path}", "-o", data), "fails its checksum")
    audit = run("pipeline", "audit", "shop/orders", "-o", data)
    refused(audit, "1 faults found in 'shop/orders'")
    assert json.loads(audit.stdout.splitlines()[-1])["damaged"][0]["partition"] == 1
