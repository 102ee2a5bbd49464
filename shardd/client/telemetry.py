"""OpenTelemetry spans of a client (needs opentelemetry-api, which the application brings with its SDK).

    client = Client(url, telemetry=Telemetry())

A span of kind CLIENT for each command of the client, PRODUCER for each message that a producer takes, until its end is
known. Its context goes with the message in the headers of the W3C (`traceparent`, `tracestate`); `processing` makes the
span of who consumes it a child of that. Names and attributes are those of the semantic conventions for messaging.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from shardd.client.errors import ClientError
from shardd.client.messages import Header, Message, headers_of
from shardd.client.settings import Settings

NAMES: Final = {
    1: "ping",
    10: "get_stats",
    11: "get_snapshot",
    12: "get_cluster_metadata",
    20: "get_me",
    21: "get_client",
    22: "get_clients",
    31: "get_user",
    32: "get_users",
    33: "create_user",
    34: "delete_user",
    35: "update_user",
    36: "update_permissions",
    37: "change_password",
    38: "login_user",
    39: "logout_user",
    41: "get_personal_access_tokens",
    42: "create_personal_access_token",
    43: "delete_personal_access_token",
    44: "login_with_personal_access_token",
    100: "poll_messages",
    101: "send_messages",
    102: "flush_unsaved_buffer",
    120: "get_consumer_offset",
    121: "store_consumer_offset",
    122: "delete_consumer_offset",
    200: "get_stream",
    201: "get_streams",
    202: "create_stream",
    203: "delete_stream",
    204: "update_stream",
    205: "purge_stream",
    300: "get_topic",
    301: "get_topics",
    302: "create_topic",
    303: "delete_topic",
    304: "update_topic",
    305: "purge_topic",
    402: "create_partitions",
    403: "delete_partitions",
    503: "delete_segments",
    600: "get_consumer_group",
    601: "get_consumer_groups",
    602: "create_consumer_group",
    603: "delete_consumer_group",
    604: "join_consumer_group",
    605: "leave_consumer_group",
    0x5344_0000: "list_extensions",
    0x5344_0001: "get_metrics",
    0x5344_0002: "announce_heartbeat",
    0x5344_0010: "get_partition_bounds",
    0x5344_0012: "lease_files",
    0x5344_0013: "unused_offsets",
    0x5344_0015: "send_once_digest",
    0x5344_0018: "poll_and_wait",
    0x5344_0019: "poll_position",
    0x5344_001A: "store_position",
    0x5344_0020: "set_topic_settings",
    0x5344_0021: "get_topic_settings",
    0x5344_0023: "change_topic",
    0x5344_0030: "init_producer",
    0x5344_0031: "send_once",
}
_SYSTEM: Final = {"messaging.system": "shardd"}


class Telemetry:
    """`tracer_provider`: the global one when there is none. Used by any number of clients."""

    def __init__(self, tracer_provider: trace.TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("shardd.client", tracer_provider=tracer_provider)

    @contextmanager
    def command(self, code: int, settings: Settings) -> Iterator[None]:
        """Around a command and its answer."""
        name, host, port = NAMES.get(code, f"command {code}"), settings.unix_path or settings.host, settings.port
        attributes: dict[str, str | int] = {
            **_SYSTEM,
            "messaging.operation.name": name,
            "server.address": host,
            "server.port": port,
        }
        with self._tracer.start_as_current_span(name, kind=SpanKind.CLIENT, attributes=attributes) as span:
            try:
                yield
            except ClientError as error:
                _failed(span, error)
                raise

    def sending(self, topic: str, headers: Mapping[str, Header] | None) -> tuple[dict[str, Header], Span]:
        """Headers with the context of the new span. `ends` must be told when the message is taken."""
        attributes = {**_SYSTEM, "messaging.operation.name": "send", "messaging.destination.name": topic}
        span = self._tracer.start_span(f"send {topic}", kind=SpanKind.PRODUCER, attributes=attributes)
        carrier: dict[str, str] = {}
        propagate.inject(carrier, trace.set_span_in_context(span))
        return {**(headers or {}), **carrier}, span

    @staticmethod
    def ends(span: Span, answer: asyncio.Future[Any]) -> None:
        """The span of `sending` ends with the answer."""

        def ended(done: asyncio.Future[Any]) -> None:
            error = None if done.cancelled() else done.exception()
            if error is not None:
                _failed(span, error)
            elif not done.cancelled():
                span.set_attribute("messaging.destination.partition.id", str(done.result().partition))
            span.end()

        answer.add_done_callback(ended)

    @contextmanager
    def processing(self, topic: str, message: Message) -> Iterator[Span]:
        """Around the work on a message: a span of kind CONSUMER below that of who sent it."""
        attributes: dict[str, str | int] = {
            **_SYSTEM,
            "messaging.operation.name": "process",
            "messaging.destination.name": topic,
            "messaging.destination.partition.id": str(message.partition),
            "messaging.shardd.offset": message.offset,
        }
        with self._tracer.start_as_current_span(
            f"process {topic}", context=context_of(message), kind=SpanKind.CONSUMER, attributes=attributes
        ) as span:
            yield span


def context_of(message: Message) -> Context:
    """What came with the message; the empty context when nothing did. ProtocolError."""
    carrier = {key: str(value) for key, value in headers_of(message.headers).items()} if message.headers else {}
    return propagate.extract(carrier, Context())


def _failed(span: Span, error: BaseException) -> None:
    span.set_attribute("error.type", type(error).__name__)
    span.set_status(Status(StatusCode.ERROR, str(error)))
