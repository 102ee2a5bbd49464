"""The source and the sink in statements of Spark SQL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from tests.spark.support import Topic, settle


def options(of: Topic, **more: str) -> str:
    given = {**of.options(), **more}
    return ", ".join(f"{name} '{value}'" for name, value in given.items() if value)


@pytest.fixture
def names(spark: SparkSession) -> Iterator[list[str]]:
    """Tables and views of a test, which are dropped behind it."""
    made: list[str] = []
    yield made
    for each in made:
        spark.sql(f"DROP {each}")


def test_a_temporary_view_is_read(spark: SparkSession, topic: Topic, names: list[str]) -> None:
    spark.sql(f"CREATE TEMPORARY VIEW read_view USING shardd OPTIONS ({options(topic)})")
    names.append("VIEW read_view")
    assert spark.sql("SELECT count(*) FROM read_view").collect() == [(6000,)]


def test_rows_are_inserted_into_a_temporary_view(spark: SparkSession, topic: Topic, names: list[str]) -> None:
    written = options(topic, subscribe="", topic=topic.name)
    spark.sql(f"CREATE TEMPORARY VIEW written_view (value BINARY, key STRING) USING shardd OPTIONS ({written})")
    names.append("VIEW written_view")
    spark.sql("INSERT INTO written_view VALUES (X'4142', 'k'), (X'43', 'k')")
    assert sum(each.end for each in topic.bounds(segments=False)) == 6002


def test_a_table_has_the_schema_of_its_options_and_takes_them_at_each_use(
    spark: SparkSession, topic: Topic, names: list[str]
) -> None:
    spark.sql(f"CREATE TABLE rows_table USING shardd OPTIONS ({options(topic, columns='offset,value')})")
    names.append("TABLE rows_table")
    found = spark.sql(f"SELECT count(*), max(offset) FROM rows_table WITH ({options(topic)})")
    assert found.collect() == [(6000, 2999)]
    spark.sql("CREATE TABLE sink_table (value BINARY) USING shardd")
    names.append("TABLE sink_table")
    spark.sql(f"INSERT INTO sink_table WITH ({options(topic, subscribe='', topic=topic.name)}) VALUES (X'44')")
    for partition in range(2):
        topic.payloads[partition] = topic.payloads[partition][:3000]
    settle(topic)
    assert spark.sql(f"SELECT count(*) FROM rows_table WITH ({options(topic)})").collect() == [(6001,)]


def test_a_table_without_options_says_where_they_go(spark: SparkSession, names: list[str]) -> None:
    spark.sql("CREATE TABLE bare_table (value BINARY) USING shardd OPTIONS (subscribe 's/t')")
    names.append("TABLE bare_table")
    with pytest.raises(AnalysisException, match=r"WITH \(subscribe 's/t', \.\.\.\)"):
        spark.sql("SELECT * FROM bare_table").collect()
    with pytest.raises(AnalysisException, match="INSERT INTO t WITH"):
        spark.sql("INSERT INTO bare_table VALUES (X'44')")
