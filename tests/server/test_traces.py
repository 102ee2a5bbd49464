"""Traces of a real server, as a collector gets them."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from shardd.cli.doors import doors_of
from shardd.config.loader import ConfigError, load_settings
from shardd.runtime import tracing
from tests.doors.http_server import HttpServer
from tests.support import wire
from tests.support.collector import Collector, attributes_of
from tests.support.server import ONE_SHARD, Server
from tests.support.wire import Wire

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CONTEXT = f"00-{TRACE}-{PARENT}-01"
NOT_CHOSEN = f"00-{TRACE}-{PARENT}-00"


def settings(collector: Collector, ratio: float = 1.0) -> dict[str, str]:
    return {
        "SHARDD_TELEMETRY_ENABLED": "true",
        "SHARDD_TELEMETRY_SERVICE_NAME": "orders",
        "SHARDD_TELEMETRY_TRACES_ENDPOINT": collector.endpoint,
        "SHARDD_TELEMETRY_TRACES_SAMPLE_RATIO": str(ratio),
    }


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as running:
        yield running


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("traces") / "data", ONE_SHARD | settings(collector)) as running:
        yield running


@pytest.fixture(scope="module")
def root(server: Server) -> Iterator[Wire]:
    with wire.connect(server.address) as connection:
        connection.create_stream("s")
        connection.create_topic("s", "t", 1)
        yield connection


def header(name: str, value: str) -> bytes:
    return struct.pack("<BI", 2, len(name)) + name.encode() + struct.pack("<BI", 2, len(value)) + value.encode()


def of(connection: Wire, span: Span) -> bool:
    return attributes_of(span).get("bytes") is not None and span.trace_id.hex() == TRACE


def test_a_command_is_a_span_and_its_change_of_the_metadata_one_in_it(collector: Collector, root: Wire) -> None:
    command = collector.wait("create_stream")
    change = collector.wait("metadata", lambda each: attributes_of(each)["change"] == "CreateStream")
    assert change.trace_id == command.trace_id and change.parent_span_id == command.span_id
    assert attributes_of(command)["user_id"] == 0
    assert command.end_time_unix_nano >= change.end_time_unix_nano
    assert ("orders", "shard-0") in collector.services


def test_the_recovery_of_a_start_is_a_span(collector: Collector, root: Wire) -> None:
    assert attributes_of(collector.wait("recovery"))["shard"] == 0


def test_a_refusal_is_a_span_with_its_status(collector: Collector, root: Wire) -> None:
    assert root.status(wire.DELETE_TOPIC, wire.identifier("s") + wire.identifier("none")) == 2010
    span = collector.wait("delete_topic")
    assert span.status.code == Status.STATUS_CODE_ERROR and attributes_of(span)["shardd.status"] == 2010


def test_a_send_that_never_reaches_python_belongs_to_the_trace_of_its_message(collector: Collector, root: Wire) -> None:
    for _ in range(3):  # the first one has no route yet
        root.send("s", "t", wire.to_partition(0), [wire.message(b"traced", headers=header("traceparent", CONTEXT))])
    span = collector.wait("send_messages", lambda each: of(root, each))
    assert span.parent_span_id.hex() == PARENT
    assert span.end_time_unix_nano >= span.start_time_unix_nano > 0
    root.poll("s", "t", 0)
    assert collector.wait("poll_messages").trace_id.hex() != TRACE


def test_who_has_not_chosen_a_trace_is_not_traced(collector: Collector, root: Wire) -> None:
    before = len([each for each in collector.spans("send_messages") if of(root, each)])
    for _ in range(3):
        root.send("s", "t", wire.to_partition(0), [wire.message(b"quiet", headers=header("traceparent", NOT_CHOSEN))])
    root.send("s", "t", wire.to_partition(0), [wire.message(b"the last one")])
    size = len(wire.batch("s", "t", wire.to_partition(0), [wire.message(b"the last one")]))
    collector.wait("send_messages", lambda each: attributes_of(each)["bytes"] == size)
    assert len([each for each in collector.spans("send_messages") if of(root, each)]) == before


def test_a_request_over_http_belongs_to_the_trace_of_its_header(tmp_path: Path) -> None:
    with Collector() as collector, HttpServer(tmp_path / "data", settings(collector, ratio=0)) as server:
        client = server.root()
        for name, context in (("untraced", ""), ("traced", CONTEXT), ("wrong", CONTEXT.upper())):
            answer = client.ask("POST", "/streams", {"name": name}, {"traceparent": context})
            assert answer.status == 200, answer.body
        span = collector.wait("create_stream")
        assert span.trace_id.hex() == TRACE and span.parent_span_id.hex() == PARENT
        assert span.kind == Span.SPAN_KIND_SERVER
        client.close()
        server.stop()
        assert len(collector.spans("create_stream")) == 1


def test_a_collector_that_is_away_or_refuses_costs_nobody_anything(tmp_path: Path) -> None:
    with Collector() as collector:
        collector.answer = 503
        with Server(tmp_path / "data", ONE_SHARD | settings(collector)) as server, wire.connect(server.address) as root:
            root.create_stream("s")
            root.create_topic("s", "t", 1)
            for number in range(200):
                root.send("s", "t", wire.to_partition(0), [wire.message(b"%d" % number)])
            assert len(root.read_all("s", "t", 0)) == 200
            assert server.stop() == 0


def test_a_backup_is_a_span(tmp_path: Path, server: Server, collector: Collector) -> None:
    config = tmp_path / "server.toml"
    config.write_text(
        f'[telemetry]\nenabled = true\n[telemetry.traces]\nendpoint = "{collector.endpoint}"\nsample_ratio = 1.0\n'
    )
    places = [str(tmp_path / "backups"), "--config", str(config), "--data", str(server.data_dir)]
    words = ["backup", "create", "--full-speed", *places]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SHARDD_")}
    done = subprocess.run([sys.executable, "-m", "shardd", *words], env=environment, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert collector.wait("backup").end_time_unix_nano > 0


@pytest.mark.parametrize(
    ("variable", "value", "sentence"),
    [
        ("IGGY_TELEMETRY_TRACES_TRANSPORT", "grpc", "OTLP over gRPC is not spoken"),
        ("SHARDD_TELEMETRY_TRACES_ENDPOINT", "localhost:4318", "must be a URL"),
        ("SHARDD_TELEMETRY_TRACES_SAMPLE_RATIO", "1.5", "must be between 0 and 1"),
        ("SHARDD_TELEMETRY_SERVICE_NAME", "x" * 256, "must be a name"),
    ],
)
def test_settings_that_cannot_be_are_refused_in_a_sentence(variable: str, value: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load_settings(None, {variable: value})


def test_a_missing_library_is_told_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk", None)
    with pytest.raises(ConfigError, match=r'pip install "shardd\[telemetry\]"'):
        doors_of(load_settings(None, {"SHARDD_TELEMETRY_ENABLED": "true"}).settings)


@pytest.mark.parametrize(
    "wrong",
    [CONTEXT.upper(), CONTEXT[:-1], CONTEXT + "0", f"00-{'0' * 32}-{PARENT}-01", f"00-{TRACE}-{'0' * 16}-01", ""],
)
def test_what_is_no_context_is_none(wrong: str) -> None:
    assert tracing.checked(wrong) == ""
    assert tracing.context_in(header("traceparent", wrong)) == ""
