"""Probes and figures of a real server: what they say, in which formats, and to whom."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import time
from pathlib import Path
from typing import Final

import psutil
import pytest

from shardd.protocol.codes import Code
from tests.doors.http_server import HttpServer
from tests.doors.metrics_server import OPEN_METRICS, WAIT_S, MetricsServer, Scrape, ask, eventually
from tests.support import wire
from tests.support.serving import Serving

ODD = 'a "b" \\c'  # a name that both formats must escape
TOKEN = "a-token-of-20-letters"


def fill(server: MetricsServer) -> None:
    with wire.connect(server.address) as root:
        root.create_stream("shop")
        root.create_topic("shop", "orders", 4)
        root.create_topic("shop", ODD, 1)
        for partition in range(4):
            root.send("shop", "orders", wire.to_partition(partition), [wire.message(b"x")] * 25)
        make_group(root, "shop", "orders", "billing")


SERVER: Final = Serving(MetricsServer, fill=fill)


def make_group(root: wire.Wire, stream: str, topic: str, name: str) -> None:
    root.request(Code.CREATE_CONSUMER_GROUP, wire.identifier(stream) + wire.identifier(topic) + wire.str8(name))


def polled(root: wire.Wire, count: int) -> None:
    """The group has passed so many messages of each partition."""
    root.request(Code.JOIN_CONSUMER_GROUP, b"".join(map(wire.identifier, ("shop", "orders", "billing"))))
    for partition in range(4):
        root.store_offset("shop", "orders", partition, count - 1, wire.group("billing"))
    root.request(Code.LEAVE_CONSUMER_GROUP, b"".join(map(wire.identifier, ("shop", "orders", "billing"))))


def test_probes_of_a_server_that_serves(server: MetricsServer) -> None:
    assert server.ask("/healthz")[::2] == (200, "ok\n")
    assert server.ask("/readyz")[::2] == (200, "ready\n")
    assert server.ask("/readyz", method="HEAD")[::2] == (200, "")
    assert [server.ask(path).status for path in ("/", "/metrics/", "//metrics", "/stats")] == [404] * 4
    assert [server.ask("/metrics", method=method).status for method in ("POST", "DELETE", "OPTIONS")] == [405] * 3


@pytest.mark.parametrize("accept", ["", "text/plain", OPEN_METRICS])
def test_both_formats_say_the_same_of_every_family(server: MetricsServer, accept: str) -> None:
    answer = server.ask("/metrics", {"Accept": accept} if accept else {})
    assert answer.media.startswith("application/openmetrics-text" if accept == OPEN_METRICS else "text/plain; version")
    assert answer.text.endswith("# EOF\n") == (accept == OPEN_METRICS)
    found = Scrape(answer)
    for name, value in {"streams": 1, "topics": 2, "partitions": 5, "messages": 100, "users": 1, "ready": 1}.items():
        assert found.value(f"shardd_{name}") == value, name
    topic = {"stream": "shop", "topic": "orders"}
    assert found.value("shardd_topic_messages", **topic) == 100
    assert found.value("shardd_topic_appended_messages_total", **topic) == 100
    assert found.value("shardd_topic_partitions", stream="shop", topic=ODD) == 1
    assert found.value("shardd_topics_left_out") == found.value("shardd_groups_left_out") == 0
    for shard in "01":
        assert found.value("shardd_shard_up", shard=shard) == found.value("shardd_shard_starts_total", shard=shard) == 1
        assert found.value("shardd_process_cpu_seconds_total", shard=shard) > 0
        assert found.value("shardd_engine_disk_refuses", shard=shard) == 0
        assert found.value("shardd_request_duration_seconds_bucket", shard=shard, le="+Inf") >= 0
    assert sum(found.value("shardd_engine_sends_total", shard=shard) for shard in "01") == 4
    assert found.kinds["shardd_request_duration_seconds"] == "histogram"


def test_every_figure_of_shardd_top_is_there(server: MetricsServer) -> None:
    with wire.connect(server.address) as root:
        from shardd.protocol.extensions import ExtensionCode, Metrics
        from shardd.protocol.primitives import Reader

        told = Metrics.read(Reader(root.request(ExtensionCode.GET_METRICS)))
    text = server.ask("/metrics").text
    for _, name in told.names:
        source, *_, figure = name.split(".")
        for unit in ("microseconds", "_us", "_ms", "_s"):
            figure = figure.removesuffix(unit)
        assert f"shardd_{source}_" in text and figure in text, name


def test_lag_of_a_group_in_messages_and_seconds(server: MetricsServer) -> None:
    labels = {"stream": "shop", "topic": "orders", "group": "billing"}
    before = server.scrape()
    assert before.value("shardd_group_lag_messages", **labels) == 100, "nothing is stored: all of them count"
    assert before.value("shardd_group_partitions_without_offset", **labels) == 4
    assert before.value("shardd_group_lag_seconds", **labels) > 0
    with wire.connect(server.address) as root:
        polled(root, 20)
        eventually(lambda: server.scrape().value("shardd_group_lag_messages", **labels) == 20, server.log)
        first = server.scrape()
        assert first.value("shardd_group_partitions", **labels) == 4
        assert first.value("shardd_group_partitions_without_offset", **labels) == 0
        time.sleep(1.1)
        later = server.scrape()
        grown = later.value("shardd_group_lag_seconds", **labels) - first.value("shardd_group_lag_seconds", **labels)
        assert grown > 0, "nobody has polled meanwhile"
        polled(root, 25)
    eventually(lambda: server.scrape().value("shardd_group_lag_messages", **labels) == 0, server.log)
    assert server.scrape().value("shardd_group_lag_seconds", **labels) == 0


def test_a_worker_that_is_gone_is_told_until_it_is_back(tmp_path: Path) -> None:
    with MetricsServer(tmp_path / "data") as server:
        os.kill(server.worker_pids()[1], signal.SIGSTOP)
        eventually(lambda: server.ask("/readyz").status == 503, server.log)
        assert server.ask("/healthz").status == 200, "a restart of the server would not help"
        server.until_ready()
        found = server.scrape()
        assert found.value("shardd_shard_starts_total", shard="1") == 2
        assert found.value("shardd_shard_starts_total", shard="0") == 1


def test_a_killed_door_is_back_and_clients_notice_nothing(tmp_path: Path) -> None:
    with MetricsServer(tmp_path / "data") as server, wire.connect(server.address) as root:
        root.create_topic(root.create_stream("s"), "t", 1)
        workers = server.worker_pids()
        title = "shardd: door metrics"
        for _ in range(3):
            [door] = [each for each in psutil.Process(server.pid).children() if title in " ".join(each.cmdline())]
            door.kill()
            root.send("s", "t", wire.to_partition(0), [wire.message(b"x")])
            eventually(lambda: _ready(server), server.log)
        assert len(root.poll("s", "t", 0, count=10).messages) == 3
        assert server.worker_pids() == workers


def _ready(server: MetricsServer) -> bool:
    try:
        return server.ask("/readyz").status == 200
    except (OSError, http.client.HTTPException):
        return False


def test_a_token_is_asked_for_by_figures_and_not_by_probes(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o600)
    with MetricsServer(tmp_path / "data", {"SHARDD_METRICS_TOKEN_FILE": str(file)}) as server:
        assert server.ask("/readyz").status == server.ask("/healthz").status == 200
        wrong = ["", "Bearer", "Bearer ", f"Bearer {TOKEN}x", f"Basic {TOKEN}", TOKEN]
        for shown in wrong:
            answer = server.ask("/metrics", {"Authorization": shown})
            assert (answer.status, answer.text) == (401, ""), shown
        assert server.ask("/metrics").status == 401
        assert server.scrape({"Authorization": f"Bearer {TOKEN}"}).value("shardd_ready") == 1
        assert TOKEN not in server.log() and TOKEN not in server.runtime_config.read_text()


def test_names_above_the_setting_are_counted_and_not_told(tmp_path: Path) -> None:
    with MetricsServer(
        tmp_path / "data", {"SHARDD_METRICS_TOPICS_MAX": "3", "SHARDD_METRICS_GROUPS_MAX": "2"}
    ) as server:
        with wire.connect(server.address) as root:
            for stream in ("a", "b"):
                root.create_stream(stream)
                for topic in range(4):
                    root.create_topic(stream, f"t{topic}", 1)
                    make_group(root, stream, f"t{topic}", "g")
        eventually(lambda: server.scrape().value("shardd_topics") == 8, server.log)
        found = server.scrape()
        told = [(each["stream"], each["topic"]) for each in found.labels_of("shardd_topic_messages")]
        assert sorted(told) == [("a", "t0"), ("a", "t1"), ("a", "t2")] and found.value("shardd_topics_left_out") == 5
        assert len(found.labels_of("shardd_group_lag_messages")) == 2 and found.value("shardd_groups_left_out") == 6


def test_many_connections_and_heads_are_bounded(server: MetricsServer) -> None:
    held = []
    try:
        for _ in range(80):
            connection = http.client.HTTPConnection(*server.metrics_address, timeout=60)
            connection.connect()
            held.append(connection)
        with pytest.raises((OSError, http.client.HTTPException)):
            server.ask("/healthz")
    finally:
        for each in held:
            each.close()
    eventually(lambda: _answers(server), server.log)
    assert server.ask("/healthz", {"X": "x" * 9000}).status == 431


def test_body_of_a_request_that_offers_another_protocol_is_no_request(server: MetricsServer) -> None:
    hidden = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    offer = b"Host: localhost\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n"
    request = b"GET /readyz HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n%b" % (offer, len(hidden), hidden)
    last = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with socket.create_connection(server.metrics_address, timeout=WAIT_S) as stream:
        stream.sendall(request + last)
        answer = b"".join(iter(lambda: stream.recv(65_536), b""))
    assert answer.count(b"HTTP/1.1 ") == answer.count(b"HTTP/1.1 200 ") == 2, answer


def _answers(server: MetricsServer) -> bool:
    try:
        return server.ask("/healthz").status == 200
    except (OSError, http.client.HTTPException):
        return False


def test_the_door_for_http_tells_everybody_eight_counts_and_no_name(tmp_path: Path) -> None:
    with HttpServer(tmp_path / "data") as server:
        with wire.connect(server.address) as root:
            root.create_stream("hidden")
            root.create_topic("hidden", "secret", 3)
        answer = ask(server.http_address, "/metrics")
        assert "hidden" not in answer.text and "secret" not in answer.text
        found = Scrape(answer)
        public = {"streams": 1, "topics": 1, "partitions": 3, "segments": 3, "messages": 0, "users": 1}
        assert {name: found.value(name) for name in public} == public
        assert found.value("http_requests_total") >= 1 and found.value("clients") >= 0
        assert len(found.samples) == 8


def test_the_counts_of_http_can_be_switched_off(tmp_path: Path) -> None:
    with HttpServer(tmp_path / "data", {"SHARDD_HTTP_METRICS_ENABLED": "false"}) as server:
        assert ask(server.http_address, "/metrics").status == 404


def test_a_token_file_that_holds_none_is_refused_with_a_sentence(tmp_path: Path) -> None:
    for content in ("short", "a token with blanks", ""):
        file = tmp_path / "token"
        file.write_text(content)
        refused = MetricsServer(tmp_path / "data", {"SHARDD_METRICS_TOKEN_FILE": str(file)})
        with pytest.raises(RuntimeError, match=r"metrics\.token_file: .* holds no token"):
            refused.start()
    missing = MetricsServer(tmp_path / "data", {"SHARDD_METRICS_TOKEN_FILE": str(tmp_path / "nothing")})
    with pytest.raises(RuntimeError, match=r"metrics\.token_file: .* cannot be read"):
        missing.start()
