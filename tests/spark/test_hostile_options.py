"""Durations and times far beyond what a field holds: a query either begins or says in one sentence which option is
wrong, whatever the value is. On a server, without a Spark session."""

from __future__ import annotations

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from shardd.spark.options import DURATION_MAX_DAYS
from shardd.spark.pipelines import aggregate
from shardd.spark.pipelines.aggregate import Aggregation
from shardd.spark.pipelines.common import PipelineError
from shardd.spark.positions import OptionError
from tests.spark import direct
from tests.spark.support import Topic

DURATIONS = ("maxTriggerDelay", "watermarkDelay", "lease")
TOO_LONG = (f"{DURATION_MAX_DAYS + 1}d", "99999999999999999999d", "9223372036854775807", "18446744073709551616ms")
TOO_FAR = (
    str(1 << 63),
    str((1 << 63) - 1),
    str((1 << 64) // 1000 + 1),
    "9" * 5000,
    "-1",
    "1969-12-31T23:59:59Z",
    "0001-01-01",
    "0001-01-01T00:00:00+14:00",
    "9999-12-31T23:59:59-14:00",
)


@pytest.mark.parametrize("name", DURATIONS)
@pytest.mark.parametrize("value", TOO_LONG)
def test_a_duration_out_of_range_is_one_sentence(topic: Topic, name: str, value: str) -> None:
    with pytest.raises(OptionError, match=f"^option '{name}' is '{value}', but ") as caught:
        direct.Stream(topic.options(startingOffsets="earliest", **{name: value})).run(ReadMaxRows(100))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["maxTriggerDelay", "watermarkDelay"])
def test_the_longest_duration_is_served(topic: Topic, name: str) -> None:
    stream = direct.Stream(topic.options(startingOffsets="earliest", **{name: f"{DURATION_MAX_DAYS}d"}))
    assert len(stream.run(ReadMaxRows(100))) == 100


@pytest.mark.parametrize("name", ["startingTimestamp", "endingTimestamp"])
@pytest.mark.parametrize("value", TOO_FAR)
def test_a_time_out_of_range_is_served_or_one_sentence(topic: Topic, name: str, value: str) -> None:
    options = topic.options(startingOffsetsByTimestampStrategy="latest", **{name: value})
    try:
        rows = direct.everything(options)
    except OptionError as error:
        assert f"option '{name}' is " in str(error) and "\n" not in str(error)
        return
    assert len(rows) in (0, 6000)


@pytest.mark.parametrize("side", ["starting", "ending"])
@pytest.mark.parametrize("value", [(1 << 63) - 1, 1 << 63, (1 << 64) // 1000 + 1, 10**400])
def test_a_time_of_a_partition_out_of_range_is_served_or_one_sentence(topic: Topic, side: str, value: int) -> None:
    text = f'{{"{topic.name}": {{"0": {value}, "1": 0}}}}'
    options = {f"{side}OffsetsByTimestamp": text, "startingOffsetsByTimestampStrategy": "latest"}
    try:
        rows = direct.everything(topic.options(**options))
    except OptionError as error:
        assert f"option '{side}OffsetsByTimestamp'" in str(error) and "\n" not in str(error)
        return
    assert len(rows) in (0, 3000)


@pytest.mark.parametrize("text", ["99999999999999999999d", f"{DURATION_MAX_DAYS + 1}d", "9" * 5000 + "s"])
def test_a_duration_of_a_pipeline_out_of_range_is_one_sentence(text: str) -> None:
    with pytest.raises(PipelineError, match="is longer than"):
        aggregate.interval(text)
    with pytest.raises(PipelineError, match=r"--window .* is longer than"):
        Aggregation.parse(text, None, "count", "length")
    with pytest.raises(PipelineError, match="a window needs a length"):
        Aggregation.parse("0s", None, "count", "length")
    assert aggregate.interval(f"{DURATION_MAX_DAYS}d") == f"{DURATION_MAX_DAYS} days"
