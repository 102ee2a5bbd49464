"""Traces by OpenTelemetry, sent as OTLP over HTTP by a thread of their own. Needs what `shardd[telemetry]` installs.

Spans are kept in a queue of `SPANS_MAX`; what does not fit is left out. A collector that does not answer costs nobody
anything but that."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Final

from shardd import __version__
from shardd.config.telemetry import Telemetry
from shardd.runtime import tracing
from shardd.runtime.tracing import Attributes, Sampled

SPANS_MAX: Final = 2048
_BATCH: Final = 128  # spans are encoded under the lock of the interpreter: a few milliseconds at a time
_EVERY_MS: Final = 1000
_EXPORT_S: Final = 10
_END_S: Final = 1.0  # for what is left when a process ends


def missing_modules() -> list[str]:
    """What has to be installed before a server can be traced."""
    wanted = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
    try:
        return [name for name in wanted if find_spec(name) is None]
    except ModuleNotFoundError:  # not even a parent of it
        return list(wanted)


def set_up_traces(settings: Telemetry, source: str) -> None:
    """From now on this process is traced, if the settings say so."""
    if settings.enabled:
        tracing.use(_OpenTelemetry(settings, source))


def end_traces() -> None:
    """Sends what is left, for a second at most: a collector that is away must not delay the end of a process."""
    tracer = tracing.current()
    if isinstance(tracer, _OpenTelemetry):
        tracing.use(None)
        tracer.end()


class _OpenTelemetry:
    def __init__(self, settings: Telemetry, source: str) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, TraceIdRatioBased
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        logging.getLogger("opentelemetry").setLevel(logging.ERROR)  # a line for each retry is too much
        resource = Resource.create(
            {"service.name": settings.service_name, "service.instance.id": source, "service.version": __version__}
        )
        exporter = OTLPSpanExporter(settings.traces.endpoint, timeout=_EXPORT_S)
        self._processor = BatchSpanProcessor(exporter, SPANS_MAX, _EVERY_MS, _BATCH)
        ratio = ParentBased(TraceIdRatioBased(settings.traces.sample_ratio))
        by_ratio, chosen = (
            TracerProvider(sampler, resource, shutdown_on_exit=False) for sampler in (ratio, ParentBased(ALWAYS_ON))
        )
        for provider in (by_ratio, chosen):
            provider.add_span_processor(self._processor)
        self._tracer, self._chosen = by_ratio.get_tracer("shardd"), chosen.get_tracer("shardd")
        self._propagator = TraceContextTextMapPropagator()

    @contextmanager
    def span(self, name: str, context: str, attributes: Attributes) -> Iterator[None]:
        from opentelemetry.trace import SpanKind

        kind = SpanKind.SERVER if context else SpanKind.INTERNAL
        parent = self._propagator.extract({"traceparent": context}) if context else None
        with self._tracer.start_as_current_span(name, parent, kind, dict(attributes), record_exception=False):
            yield

    def refused(self, status: int) -> None:
        from opentelemetry import trace

        span = trace.get_current_span()
        span.set_attribute("shardd.status", status)
        span.set_status(trace.Status(trace.StatusCode.ERROR))

    def sampled(self, request: Sampled, context: str) -> None:
        from opentelemetry import trace

        parent = self._propagator.extract({"traceparent": context}) if context else None
        span = self._chosen.start_span(
            request.name, parent, trace.SpanKind.SERVER, request.attributes, start_time=request.began_ns
        )
        if request.status:
            span.set_attribute("shardd.status", request.status)
            span.set_status(trace.Status(trace.StatusCode.ERROR))
        span.end(request.began_ns + request.took_ns)

    def end(self) -> None:
        ending = threading.Thread(target=self._processor.shutdown, name="traces", daemon=True)
        ending.start()
        ending.join(_END_S)
