"""A real server with its door for metrics, and what a scrape of it says."""

from __future__ import annotations

import http.client
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic, sleep
from typing import Final, NamedTuple

from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics_families
from prometheus_client.parser import text_string_to_metric_families as text_families

from tests.support.server import Server

HOST: Final = "127.0.0.1"
WAIT_S: Final = 60.0
METRICS: Final = {
    "SHARDD_METRICS_ENABLED": "true",
    "SHARDD_METRICS_ADDRESS": f"{HOST}:0",
    "SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "2",
}
OPEN_METRICS: Final = "application/openmetrics-text; version=1.0.0"
Labels = frozenset[tuple[str, str]]


class Answer(NamedTuple):
    status: int
    media: str
    text: str


class Scrape:
    """Samples by name and labels, as a parser of Prometheus reads them."""

    def __init__(self, answer: Answer) -> None:
        assert answer.status == 200, answer
        parse = open_metrics_families if answer.media.startswith("application/openmetrics") else text_families
        self.kinds: dict[str, str] = {}
        self.samples: dict[tuple[str, Labels], float] = {}
        for family in parse(answer.text):
            assert family.name not in self.kinds, f"{family.name} stands twice"
            self.kinds[family.name] = family.type
            for sample in family.samples:
                key = sample.name, frozenset(sample.labels.items())
                assert key not in self.samples, f"{key} stands twice"
                self.samples[key] = sample.value

    def value(self, name: str, **labels: str) -> float:
        return self.samples[name, frozenset(labels.items())]

    def labels_of(self, name: str) -> list[dict[str, str]]:
        return [dict(labels) for found, labels in self.samples if found == name]


def ask(address: tuple[str, int], path: str, headers: Mapping[str, str] | None = None, method: str = "GET") -> Answer:
    connection = http.client.HTTPConnection(*address, timeout=WAIT_S)
    try:
        connection.request(method, path, headers=dict(headers or {}))
        answer = connection.getresponse()
        return Answer(answer.status, answer.getheader("content-type", ""), answer.read().decode())
    finally:
        connection.close()


class MetricsServer(Server):
    """`metrics_address` is known when it has started."""

    def __init__(self, data: Path, env: Mapping[str, str] | None = None) -> None:
        super().__init__(data, {**METRICS, **(env or {})})
        self.metrics_address = (HOST, 0)

    def start(self, timeout_s: float = WAIT_S) -> None:
        super().start(timeout_s)
        host, _, port = tomllib.loads(self.runtime_config.read_text())["metrics"]["address"].rpartition(":")
        self.metrics_address = host, int(port)
        self.until_ready()

    def ask(self, path: str, headers: Mapping[str, str] | None = None, method: str = "GET") -> Answer:
        return ask(self.metrics_address, path, headers, method)

    def scrape(self, headers: Mapping[str, str] | None = None) -> Scrape:
        return Scrape(self.ask("/metrics", headers))

    def until_ready(self) -> None:
        eventually(lambda: self.ask("/readyz").status == 200, self.log)


def eventually(holds: Callable[[], bool], about: Callable[[], object]) -> None:
    """Waits until it holds. TimeoutError with what `about` says."""
    deadline = monotonic() + WAIT_S
    while not holds():
        if monotonic() > deadline:
            raise TimeoutError(about())
        sleep(0.1)
