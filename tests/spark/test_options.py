"""Options, positions and cuts: pure functions of the planner. No Spark session."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardd.spark import planner
from shardd.spark.options import ReadMode, parse
from shardd.spark.planner import Slice
from shardd.spark.positions import (
    EARLIEST,
    LATEST,
    Offsets,
    OptionError,
    Position,
    TopicName,
    cuts,
    group_of,
    share,
    stride_of,
)
from shardd.spark.sinks.topic import options as topic_options

GOOD = {"subscribe": "s/t", "username": "u", "password": "p"}


def fault(**options: str) -> str:
    with pytest.raises(OptionError) as caught:
        parse({**GOOD, **options}, streaming=False)
    return str(caught.value)


def test_a_misspelt_option_names_the_right_one() -> None:
    assert "did you mean 'startingOffsets'" in fault(startingofset="earliest")
    assert "did you mean 'maxBytesPerTrigger'" in fault(maxbytepertrigger="1")


@pytest.mark.parametrize("owned", ["group", "autoCommit", "strategy"])
def test_what_the_reader_owns_cannot_be_overridden(owned: str) -> None:
    assert f"'{owned.lower()}'" in fault(**{owned: "x"})


def test_exactly_one_subscription() -> None:
    assert "exactly one" in fault(subscribePattern="s/.*")
    with pytest.raises(OptionError, match="exactly one"):
        parse({"username": "u", "password": "p"}, streaming=False)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("failOnDataLoss", "yes"),
        ("readMode", "warm"),
        ("isolation", "fsync"),
        ("maxOffsetsPerTrigger", "0"),
        ("maxBytesPerTrigger", "ten"),
        ("poll.maxBytes", "1 GiB"),
        ("minPartitions", "-1"),
        ("verifyChecksums", "maybe"),
        ("columns", "offset,valeu"),
        ("maxTriggerDelay", "soon"),
        ("startingOffsets", "middle"),
        ("endingOffsets", "earliest"),
        ("startingTimestamp", "yesterday"),
        ("startingOffsets", '{"s/t": {"0": -3}}'),
        ("startingOffsets", '{"s/t": [1]}'),
        ("startingOffsets", '{"s/t": {"x": 1}}'),
        ("assign", "[]"),
        ("subscribePattern", "("),
    ],
)
def test_bad_values_name_their_option(name: str, value: str) -> None:
    given_options = {**GOOD, name: value}
    if name in ("assign", "subscribePattern"):
        del given_options["subscribe"]
    with pytest.raises(OptionError) as caught:
        parse(given_options, streaming=False)
    assert name in str(caught.value)


def test_cold_reads_need_a_path() -> None:
    assert "'path'" in fault(readMode="cold")


def test_a_stream_has_no_end() -> None:
    with pytest.raises(OptionError, match="endingOffsets"):
        parse({**GOOD, "endingOffsets": "latest"}, streaming=True)


def test_credentials_come_from_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "contradict" in fault(token="t")
    for name in ("SHARDD_USERNAME", "SHARDD_PASSWORD", "SHARDD_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(OptionError, match="no credentials"):
        parse({"subscribe": "s/t"}, streaming=False)
    monkeypatch.setenv("SHARDD_TOKEN", "abc")
    assert parse({"subscribe": "s/t"}, streaming=False).credentials.token == "abc"
    assert "abc" not in repr(parse({"subscribe": "s/t"}, streaming=False)), "secrets stay out of plans and logs"


def test_defaults_are_those_of_kafka_where_it_has_them() -> None:
    batch, stream = parse(GOOD, streaming=False), parse(GOOD, streaming=True)
    assert (batch.starting.default, stream.starting.default) == (EARLIEST, LATEST)
    assert batch.fail_on_data_loss and batch.durable and batch.read_mode is ReadMode.AUTO
    assert batch.topics == (TopicName("s", "t"),)


def test_a_bare_topic_needs_the_stream_option() -> None:
    assert parse({**GOOD, "subscribe": "t", "stream": "s"}, streaming=False).topics == (TopicName("s", "t"),)
    assert "write 'stream/t'" in fault(subscribe="t")


@given(st.integers(0, 10**6), st.integers(0, 10**4), st.integers(0, 5000))
def test_cuts_cover_the_range_once_and_only_cut_at_the_stride(start: int, length: int, stride: int) -> None:
    parts = cuts(start, start + length, stride)
    assert (
        [n for low, high in parts for n in (low, high)][1:-1:2] == [low for low, _ in parts[1:]]
        if parts
        else length == 0
    )
    assert sum(high - low for low, high in parts) == length
    assert all(low % stride == 0 for low, _ in parts[1:]) if stride else len(parts) <= 1


@given(st.integers(0, 10**6), st.integers(1, 10**4), st.integers(1, 5000), st.data())
def test_a_longer_range_is_cut_at_the_same_places(start: int, length: int, stride: int, data: st.DataObject) -> None:
    inner = start + data.draw(st.integers(0, length))
    borders = {low for low, _ in cuts(start, start + length, stride)} | {inner}
    assert {low for low, _ in cuts(inner, start + length, stride)} <= borders


@given(st.integers(0, 10**6), st.dictionaries(st.integers(0, 20), st.integers(0, 10**5), max_size=8))
def test_a_limit_is_shared_in_proportion(limit: int, backlog: dict[int, int]) -> None:
    shares = share(limit, backlog)
    assert shares.keys() == backlog.keys()
    assert all(0 <= shares[key] <= waiting for key, waiting in backlog.items())
    assert all(shares[key] > 0 for key, waiting in backlog.items() if waiting), "nobody starves"
    assert sum(shares.values()) <= max(limit, 0) + len(backlog)


def test_stride_follows_the_tightest_limit() -> None:
    free = {"max_records": None, "max_bytes": 1 << 20, "min_partitions": None}
    assert stride_of(10_000, 1_000_000, 10_000, 1, **free) == (1 << 20) // 100  # type: ignore[arg-type]
    assert stride_of(10_000, 1_000_000, 10_000, 1, max_records=50, max_bytes=1 << 20, min_partitions=None) == 50
    assert stride_of(10_000, 1_000_000, 10_000, 2, max_records=None, max_bytes=1 << 30, min_partitions=8) == 1250


NAMES = st.text(min_size=1, max_size=5) | st.sampled_from(["a/b", "`", "``/", "/", "a`b", " a ", "a,b", "ten/ant"])
PLACES = st.dictionaries(st.integers(0, 100), st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**63 - 1)))


@given(st.dictionaries(st.tuples(NAMES, NAMES), PLACES, max_size=3))
def test_offsets_survive_the_checkpoint(topics: dict[tuple[str, str], dict[int, tuple[int, int]]]) -> None:
    places = {TopicName(*name): {n: Position(*p) for n, p in parts.items()} for name, parts in topics.items()}
    offsets = Offsets(places, dict.fromkeys(places, 7), dict.fromkeys(places, 3))
    assert Offsets.from_json(json.loads(json.dumps(offsets.to_json()))) == offsets


@given(st.tuples(NAMES, NAMES), st.tuples(NAMES, NAMES))
def test_no_two_topics_have_the_same_text(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert (str(TopicName(*one)) == str(TopicName(*other))) == (one == other)


@given(st.lists(st.tuples(NAMES, NAMES), min_size=1, max_size=4, unique=True))
def test_every_topic_can_be_subscribed_to(names: list[tuple[str, str]]) -> None:
    quoted = ",".join("/".join("`" + part.replace("`", "``") + "`" for part in name) for name in names)
    assert parse({**GOOD, "subscribe": quoted}, streaming=False).topics == tuple(TopicName(*name) for name in names)


def test_a_name_with_a_slash_stands_in_backticks() -> None:
    assert str(TopicName("ten/ant", "rows")) == "`ten/ant`/rows"
    assert TopicName.parse("`ten/ant`/rows", None) == TopicName("ten/ant", "rows")
    assert TopicName.parse("ten/`ant/rows`", None) == TopicName("ten", "ant/rows")
    assert "in backticks" in fault(subscribe="ten/ant/rows")


def test_checkpoints_from_before_the_quotes_are_read_as_they_were_written() -> None:
    old = {"v": 1, "topics": {"`s`/a`b": {"p": {"0": [5, 7]}, "stride": 9}}}
    assert Offsets.from_json(old) == Offsets(
        {TopicName("`s`", "a`b"): {0: Position(5, 7)}}, {TopicName("`s`", "a`b"): 9}, {TopicName("`s`", "a`b"): 0}
    )
    assert Offsets({TopicName("s", "t"): {0: Position(5, 7)}}).to_json()["v"] == 1, "an older shardd reads it, too"


def test_an_unknown_checkpoint_version_is_refused() -> None:
    with pytest.raises(ValueError, match="version 3"):
        Offsets.from_json({"v": 3, "topics": {}})


def piece(partition: int, count: int) -> Slice:
    return Slice(TopicName("s", "t"), partition, 1, 0, count, ())


def test_small_pieces_share_a_task_and_large_ones_do_not() -> None:
    end = Offsets({}, {}, {TopicName("s", "t"): 100})
    small = planner.tasks([piece(n, 10) for n in range(1000)], end)
    assert [len(each) for each in small] == [9] * 111 + [1] and sum(small, ()) == tuple(
        piece(n, 10) for n in range(1000)
    )
    assert [len(each) for each in planner.tasks([piece(n, 0) for n in range(300)], end)] == [128, 128, 44]
    assert [len(each) for each in planner.tasks([piece(n, 100) for n in range(3)], end)] == [1, 1, 1]
    assert len(planner.tasks([piece(n, 1) for n in range(9)], Offsets({}))) == 9, "an old checkpoint has no group"


def test_sharing_leaves_the_tasks_that_were_asked_for() -> None:
    sizes = {"size_bytes": 100_000, "messages": 1000}
    assert group_of(1000, **sizes, min_bytes=1 << 20, min_partitions=None) == (1 << 20) // 100
    assert group_of(1000, **sizes, min_bytes=1 << 20, min_partitions=8) == 125
    assert group_of(1000, **sizes, min_bytes=0, min_partitions=None) == 0


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("kafka.bootstrap.servers", "use 'servers'"),
        ("kafka.sasl.jaas.config", "use 'username' and 'password'"),
        ("kafka.ssl.truststore.location", "use an address in 'servers' with TLS"),
        ("kafka.max.poll.records", "use 'poll.maxBytes'"),
        ("kafka.group.id", "leave it out: the checkpoint decides the position"),
        ("kafka.no.such", "leave it out; docs/spark.md lists"),
    ],
)
def test_an_option_of_kafka_is_told_with_what_stands_for_it(name: str, said: str) -> None:
    assert said in fault(**{name: "x"}) and f"'{name}' is one of Kafka" in fault(**{name: "x"})


def test_the_sink_tells_it_too() -> None:
    given = {"topic": "s/t", "username": "u", "password": "p"}
    for name, said in (("kafka.acks", "the level of the topic decides"), ("kafka.batch.size", "use 'batchBytes'")):
        with pytest.raises(OptionError, match=said):
            topic_options.parse({**given, name: "1"}, streaming=True)
