"""Ways to a server, and which partition a producer writes to."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shardd.benchmark.kinds import BY_NAME
from shardd.benchmark.measure import measure
from shardd.benchmark.options import BenchError, Options, Output, Span, Tls, check
from shardd.benchmark.servers.own import OwnShardd
from shardd.benchmark.servers.wire import Wire, control
from shardd.client.values import Topic
from tests.support.certificates import Authority
from tests.support.certificates import settings as tls_settings
from tests.support.server import ONE_SHARD, Server
from tests.support.wide import wide, wide_but

WAYS: dict[str, dict[str, Any]] = {
    "tls": {"tls": Tls()},
    "websocket": {"websocket": True},
    "websocket with tls": {"websocket": True, "tls": Tls()},
    "unix": {"unix_path": "its own"},
}


def options(name: str, directory: Path, **values: object) -> Options:
    given: dict[str, object] = {
        "batches": 40,
        "batch": Span(1, 20),
        "message_size": Span(0, 3000),
        "own": True,
        "directory": str(directory),
        "server_settings": ("SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION=1",),
    }
    return Options(BY_NAME[name], 2, 1, 2, 2, 1, **(given | values))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0-99999999999", f"no CPU {os.cpu_count()}"),
        ("99999", "no CPU 99999"),
        ("1-0", "not '1-0'"),
        ("a", "not 'a'"),
        ("", "not ''"),
        ("\u00b2", "not '\u00b2'"),
    ],
)
def test_cpus_that_are_not_there_are_a_sentence_at_once(text: str, words: str) -> None:
    with pytest.raises(BenchError, match=re.escape(words)):
        Options.cpus_of(text)


@pytest.mark.parametrize("address", ["nowhere", "localhost:", "localhost:\u00b2", "localhost:65536"])
def test_an_address_that_is_none_is_a_sentence(address: str, tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="is host:port"):
        options("pinned-producer", tmp_path, server_address=address).settings()


@pytest.mark.parametrize("way", wide_but(["unix", "websocket with tls"], WAYS))
def test_each_way_carries_all_messages(way: str, tmp_path: Path) -> None:
    chosen = options("end-to-end-producing-consumer", tmp_path, batch=Span(10, 10), **WAYS[way])
    report = measure(chosen, Output())
    assert [each["summary"]["total_messages"] for each in report["individual_metrics"]] == [800, 800]
    assert report["server_stats"]["messages_count"] == 800
    assert report["shardd"]["tls"] is ("tls" in WAYS[way])
    expected = "websocket" if "websocket" in WAYS[way] else "unix" if "unix_path" in WAYS[way] else "tcp"
    assert report["params"]["transport"] == expected


def test_large_batches_and_several_requests_in_flight_over_tls_and_websocket(tmp_path: Path) -> None:
    chosen = options("pinned-producer", tmp_path, depth=8, batch=Span(1000, 1000), message_size=Span(1000, 1000))
    report = measure(replace(chosen, websocket=True, tls=Tls(), batches=20), Output())
    assert sum(each["summary"]["total_messages"] for each in report["individual_metrics"]) == 40_000


@pytest.mark.parametrize("way", [wide({}), {"websocket": True, "tls": Tls()}])
def test_the_framing_of_09_carries_all_messages(way: dict[str, Any], tmp_path: Path) -> None:
    """The server verifies each checksum; consumers find every message that was acknowledged."""
    chosen = options("end-to-end-producing-consumer", tmp_path, dialect="0.9", batch=Span(10, 10), **way)
    report = measure(chosen, Output())
    assert [each["summary"]["total_messages"] for each in report["individual_metrics"]] == [800, 800]
    assert report["shardd"]["dialect"] == "0.9" and report["server_stats"]["messages_count"] == 800


def test_what_is_written_in_09_is_read_in_08(tmp_path: Path) -> None:
    chosen = options("pinned-producer", tmp_path, dialect="0.9", depth=4, batches=50)
    with Server(tmp_path / "data", ONE_SHARD) as server:
        written = measure(replace(chosen, own=False, server_address=server.address), Output())
        total = sum(each["summary"]["total_messages"] for each in written["individual_metrics"])
        size = sum(each["summary"]["total_user_data_bytes"] for each in written["individual_metrics"])
        reading = options("pinned-consumer", tmp_path, own=False, server_address=server.address, total_data_bytes=size)
        for dialect in ("0.8", "0.9"):
            read = measure(replace(reading, dialect=dialect, batch=Span(7, 7)), Output())
            assert 0 < sum(each["summary"]["total_messages"] for each in read["individual_metrics"]) <= total


GROUPED = ("balanced-consumer-group", "balanced-producer-and-consumer-group", "end-to-end-producing-consumer-group")


@pytest.mark.parametrize("name", wide_but([GROUPED[1]], GROUPED))
def test_groups_of_09_read_each_message_once(name: str, tmp_path: Path) -> None:
    chosen = options(name, tmp_path, dialect="0.9", batch=Span(10, 10), message_size=Span(100, 100))
    report = measure(replace(chosen, streams=1, partitions=4), Output())
    moved: dict[str, int] = {}
    for each in report["individual_metrics"]:
        summary = each["summary"]
        moved[summary["actor_kind"]] = moved.get(summary["actor_kind"], 0) + summary["total_messages"]
    assert report["server_stats"]["messages_count"] == 800
    if name == "balanced-consumer-group":
        assert moved == {"consumer": 800}
    elif name == "balanced-producer-and-consumer-group":  # a poll may have found less than a whole batch
        assert moved["producer"] == 800 and 0 < moved["consumer"] <= 800
    else:
        assert 800 < moved["producing_consumer"] <= 1600


def test_a_member_of_09_without_a_partition_waits_for_the_others(tmp_path: Path) -> None:
    chosen = options("balanced-consumer-group", tmp_path, dialect="0.9", batch=Span(10, 10))
    report = measure(replace(chosen, streams=1, partitions=2, consumers=4), Output())
    read = [each["summary"]["total_messages"] for each in report["individual_metrics"]]
    assert sum(read) == 1600 and sorted(read)[:2] == [0, 0]


def test_members_of_09_follow_when_partitions_move(tmp_path: Path) -> None:
    """A classic member comes and goes meanwhile: they are told that a partition is another's, and ask again."""
    chosen = options("balanced-producer-and-consumer-group", tmp_path, dialect="0.9", batch=Span(10, 10))
    chosen = replace(chosen, streams=1, partitions=6, batches=500, rate_limit_bytes=10_000_000, disturbance="rebalance")
    own = measure(replace(chosen, message_size=Span(1000, 1000)), Output())["shardd"]
    assert own["beside"]["times"] >= 2 and own["messages_per_second"] > 0


def refused(way: Tls | None, server: Server, **values: object) -> str:
    chosen = options("pinned-producer", Path(), own=False, server_address=server.address, tls=way, **values)
    with pytest.raises(BenchError) as error:
        measure(chosen, Output())
    return str(error.value)


def test_a_certificate_is_verified_when_that_is_asked_for(tmp_path: Path) -> None:
    authority = Authority.make(tmp_path)
    environment = ONE_SHARD | tls_settings(authority.sign("localhost", names="DNS:localhost"))
    with Server(tmp_path / "data", environment) as server:
        trusted = Tls("localhost", str(authority.certificate), True)
        chosen = options("pinned-producer", tmp_path, own=False, server_address=server.address, tls=trusted)
        measure(chosen, Output())
        assert "certificate" in refused(trusted._replace(ca_file=""), server)
        assert "mismatch" in refused(trusted._replace(domain="elsewhere.example"), server)
        sentence = refused(trusted._replace(ca_file="/nowhere"), server).lower()
        assert "no such file" in sentence or "no certificate" in sentence  # as other threads of OpenSSL left it
        assert "closed" in refused(None, server) or "reset" in refused(None, server)


def test_what_speaks_no_tls_and_no_websocket_is_a_sentence(tmp_path: Path) -> None:
    with Server(tmp_path / "data", ONE_SHARD) as server:
        assert "TLS handshake" in refused(Tls(), server)
        assert "WebSocket upgrade" in refused(None, server, websocket=True)


def stored(chosen: Options, topic: Callable[[Topic], object]) -> Any:
    """What `topic` finds in the server, between the measurement and its end."""
    found: list[object] = []

    class Looking(OwnShardd):
        def stop(self) -> None:
            if self.port and not found:
                with control(self._reached(chosen)) as client:
                    seen = client.topic("bench-stream-1", "topic-1")
                    assert seen is not None
                    found.append(topic(seen))
            super().stop()

    measure(chosen, Output(), Looking())
    return found[0]


@pytest.mark.parametrize("way", wide_but(["key", "partition"], ["balanced", "key", "random", "partition"]))
def test_producers_write_where_they_are_told(way: str, tmp_path: Path) -> None:
    chosen = options("balanced-producer", tmp_path, partitioning=way, batch=Span(10, 10), batches=100)
    chosen = replace(chosen, streams=1, partitions=4, producers=2)
    counts = stored(chosen, lambda topic: sorted(each.messages_count for each in topic.partitions))
    assert sum(counts) == 2000
    if way == "partition":
        assert counts == [0, 0, 0, 2000]
    else:
        assert counts[0] >= (490 if way == "balanced" else 200)


def test_a_hot_partition_gets_its_share(tmp_path: Path) -> None:
    chosen = options("balanced-producer", tmp_path, partitioning="random", hot_percent=80, batch=Span(1, 1))
    chosen = replace(chosen, streams=1, partitions=4, producers=2, batches=1000)
    counts = stored(chosen, lambda topic: {each.id: each.messages_count for each in topic.partitions})
    assert sum(counts.values()) == 2000 and 1450 < counts[0] < 1750
    assert all(60 < counts[number] < 220 for number in (1, 2, 3))


def test_wrong_words_about_partitions_are_refused() -> None:
    chosen = options("balanced-producer", Path(), partitioning="sideways")
    with pytest.raises(BenchError, match="partitioning"):
        check(replace(chosen, partitions=4, streams=1))
    with pytest.raises(BenchError, match="hot-percent"):
        check(replace(chosen, partitions=4, streams=1, partitioning="", hot_percent=3))


def test_nobody_listens_is_a_sentence() -> None:
    chosen = options("pinned-producer", Path(), own=False, server_address="127.0.0.1:1")
    with pytest.raises(BenchError, match=r"cannot connect|refused"):
        measure(chosen, Output(), Wire())
