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

from shardd.client import command_codes
from shardd.client.errors import ClientError
from shardd.client.messages import Header, Message, headers_of
from shardd.client.settings import Settings

_NAMES: Final = {each.code: each.name for each in command_codes.ALL}
_SYSTEM: Final = {"messaging.system": "shardd"}


class Telemetry:
    """`tracer_provider`: the global one when there is none. Used by any number of clients."""

    def __init__(self, tracer_provider: trace.TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("shardd.client", tracer_provider=tracer_provider)

    @contextmanager
    def command(self, code: int, settings: Settings) -> Iterator[None]:
        """Around a command and its answer."""
        name, host, port = _NAMES.get(code, f"command {code}"), settings.unix_path or settings.host, settings.port
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
