"""A collector of OpenTelemetry: takes OTLP over HTTP in protobuf and keeps the spans."""

from __future__ import annotations

import gzip
import http.server
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

WAIT_S: Final = 60.0


def attributes_of(span: Span) -> dict[str, Any]:
    values = {each.key: each.value for each in span.attributes}
    return {key: getattr(value, value.WhichOneof("value") or "") for key, value in values.items()}


class Collector:
    """`answer`: the status of what is posted. A context manager."""

    def __init__(self) -> None:
        self.answer = 200
        self.services: set[tuple[str, str]] = set()  # service.name, service.instance.id
        self._spans: list[Span] = []
        self._lock = threading.Lock()
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                collector._take(ExportTraceServiceRequest.FromString(body))
                self.send_response(collector.answer)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1/traces"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()

    def spans(self, name: str) -> list[Span]:
        with self._lock:
            return [each for each in self._spans if each.name == name]

    def wait(self, name: str, holds: Callable[[Span], bool] = lambda _: True) -> Span:
        """The first such span, when it has come."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            for span in self.spans(name):
                if holds(span):
                    return span
            time.sleep(0.02)
        raise TimeoutError(f"no such span {name} among {[each.name for each in self._spans]}")

    def _take(self, request: ExportTraceServiceRequest) -> None:
        with self._lock:
            for resource in request.resource_spans:
                said = {each.key: each.value.string_value for each in resource.resource.attributes}
                self.services.add((said["service.name"], said["service.instance.id"]))
                self._spans += [span for scope in resource.scope_spans for span in scope.spans]
