"""Spans of a client: what was asked, what was sent, and who consumed it, in one trace."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from shardd.client import Client, Consumer, Producer, SyncClient
from shardd.client.errors import DeliveryError, NotFoundError
from shardd.client.messages import headers_of
from shardd.client.telemetry import Telemetry
from tests.support.server import ONE_SHARD, Server


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Server(tmp_path_factory.mktemp("telemetry") / "data", ONE_SHARD) as server:
        yield f"shardd://iggy:iggy@{server.address}"


@pytest.fixture
def exported() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(exported: InMemorySpanExporter) -> TracerProvider:
    made = TracerProvider()
    made.add_span_processor(SimpleSpanProcessor(exported))
    return made


def by_name(exported: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in exported.get_finished_spans()}


def attribute(span: ReadableSpan, name: str) -> object:
    assert span.attributes is not None
    return span.attributes[name]


def test_who_consumes_a_message_is_in_the_trace_of_who_sent_it(
    url: str, exported: InMemorySpanExporter, provider: TracerProvider
) -> None:
    telemetry = Telemetry(provider)

    async def run() -> None:
        async with Client(url, telemetry=telemetry) as client:
            await client.create_stream("traced")
            await client.create_topic("traced", "events", 2)
            async with Producer(client, "traced", "events") as producer:
                with provider.get_tracer("test").start_as_current_span("order"):
                    await producer.send_and_wait(b"one", partition=1, headers={"kind": "order"})
            async with Consumer(client, "traced", "events", name="reader") as consumer:
                message = await asyncio.wait_for(consumer.get(), 60)
                assert headers_of(message.headers)["kind"] == "order"
                with telemetry.processing("events", message):
                    pass

    asyncio.run(run())
    spans = by_name(exported)
    order, sent, processed = spans["order"], spans["send events"], spans["process events"]
    assert order.context is not None and sent.parent is not None and sent.parent.span_id == order.context.span_id
    assert sent.context is not None and processed.parent is not None
    assert processed.parent.span_id == sent.context.span_id
    assert processed.context is not None and processed.context.trace_id == order.context.trace_id
    assert (sent.kind, processed.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert attribute(sent, "messaging.destination.partition.id") == "1"
    created = spans["create_topic"]
    assert created.kind is SpanKind.CLIENT and attribute(created, "server.address") == "127.0.0.1"


def test_a_failure_is_in_its_span(url: str, exported: InMemorySpanExporter, provider: TracerProvider) -> None:
    with SyncClient(url, telemetry=Telemetry(provider)) as client, pytest.raises(NotFoundError):
        client.delete_stream("nowhere")
    span = by_name(exported)["delete_stream"]
    assert span.status.status_code is StatusCode.ERROR and attribute(span, "error.type") == "NotFoundError"


def test_the_end_of_a_message_that_is_not_stored_is_in_its_span(
    url: str, exported: InMemorySpanExporter, provider: TracerProvider
) -> None:
    async def run() -> None:
        async with Client(url, telemetry=Telemetry(provider)) as client:
            await client.create_stream("refusing")
            await client.create_topic("refusing", "events", 1)
            async with Producer(client, "refusing", "events", deadline_s=5.0) as producer:
                with pytest.raises(DeliveryError):
                    await producer.send_and_wait(b"one", partition=7)

    asyncio.run(run())
    span = by_name(exported)["send events"]
    assert span.end_time is not None and span.status.status_code is StatusCode.ERROR
