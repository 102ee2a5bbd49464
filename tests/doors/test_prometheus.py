"""A real Prometheus (Debian's) scrapes a server under load: every query of the dashboard and of the alert rules in
`config/` has data."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from shardd.protocol.codes import Code
from tests.doors.metrics_server import OPEN_METRICS, MetricsServer, eventually
from tests.support import wire
from tests.support.ports import free_port

PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")
CONFIG: Final = Path(__file__).parents[2] / "config"
RULES: Final = CONFIG / "prometheus" / "shardd-alerts.yml"
DASHBOARD: Final = CONFIG / "grafana" / "shardd.json"
# a rule is a query, a comparison and a number
_RULE: Final = re.compile(r"expr: (.+) (?:==|>|<) ([0-9.]+)$", re.M)
_FILTER: Final = 'instance=~"$instance"'
pytestmark = [
    pytest.mark.skipif(PROMETHEUS is None or PROMTOOL is None, reason="needs prometheus and promtool"),
    pytest.mark.timeout(600),
]


def queries_of_rules() -> list[str]:
    found = _RULE.findall(RULES.read_text())
    assert len(found) == RULES.read_text().count("- alert:") > 10, "a rule of another form"
    return [query for query, _ in found]


def queries_of_dashboard() -> list[str]:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    assert len(queries) > 40 and all(_FILTER in query for query in queries)
    return [query.replace(_FILTER, 'job="shardd"').replace("$__rate_interval", "1m") for query in queries]


class Prometheus:
    """One process; asked over its API."""

    def __init__(self, base: Path, target: tuple[str, int], token_file: Path | None = None) -> None:
        authorization = "" if token_file is None else f"    authorization: {{credentials_file: {token_file}}}\n"
        (base / "prometheus.yml").write_text(
            "global: {scrape_interval: 2s, evaluation_interval: 2s, scrape_timeout: 2s}\n"
            f"rule_files: ['{RULES}']\n"
            f"scrape_configs:\n  - job_name: shardd\n{authorization}"
            f"    static_configs: [{{targets: ['{target[0]}:{target[1]}']}}]\n"
        )
        self._address = f"127.0.0.1:{free_port()}"
        assert PROMETHEUS is not None
        self._log = (base / "prometheus.log").open("wb")
        self.process = subprocess.Popen(
            [
                PROMETHEUS,
                f"--config.file={base / 'prometheus.yml'}",
                f"--storage.tsdb.path={base / 'tsdb'}",
                f"--web.listen-address={self._address}",
            ],
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        self.log_path = base / "prometheus.log"

    def close(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(60)
        self._log.close()

    def get(self, path: str, **parameters: str) -> Any:
        """What its API answers; None when it does not yet."""
        url = f"http://{self._address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            assert error.code == 503, (path, parameters, error.read())
            return None
        except (OSError, ValueError):
            return None

    def values(self, query: str) -> list[float]:
        found = self.get("query", query=query)
        return [] if found is None else [float(each["value"][1]) for each in found["result"]]

    def about(self) -> str:
        return self.log_path.read_text(errors="replace")[-4000:]


class Load(threading.Thread):
    """Sends and polls until it is stopped; the group stays behind."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self._address = address
        self.stopping = threading.Event()

    def run(self) -> None:
        while not self.stopping.is_set():
            with contextlib.suppress(OSError, wire.StatusError):  # a worker that is replaced
                self._work()

    def _work(self) -> None:
        with wire.connect(self._address) as root:
            while not self.stopping.is_set():
                for partition in range(4):
                    root.send("shop", "orders", wire.to_partition(partition), [wire.message(b"x" * 100)] * 50)
                    root.poll("shop", "orders", partition, count=10)
                time.sleep(0.02)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MetricsServer]:
    """With a certificate, so that its figures are there."""
    tls = {"SHARDD_TCP_TLS_MODE": "both", "SHARDD_TCP_TLS_SELF_SIGNED": "true"}
    with MetricsServer(tmp_path_factory.mktemp("scraped") / "data", tls) as running:
        with wire.connect(running.address) as root:
            root.create_stream("shop")
            root.create_topic("shop", "orders", 4)
            place = wire.identifier("shop") + wire.identifier("orders")
            root.request(Code.CREATE_CONSUMER_GROUP, place + wire.str8("billing"))
        load = Load(running.address)
        load.start()
        yield running
        load.stopping.set()
        load.join(60)


@pytest.fixture(scope="module")
def prometheus(server: MetricsServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    started = Prometheus(tmp_path_factory.mktemp("prometheus"), server.metrics_address)
    try:
        eventually(lambda: started.values('sum_over_time(up{job="shardd"}[10m])') > [2.0], started.about)
        yield started
    finally:
        started.close()


def without_data(prometheus: Prometheus, queries: list[str]) -> list[str]:
    """Those for which there is no number."""
    return [query for query in queries if not any(each == each for each in prometheus.values(query))]


def test_every_query_of_the_dashboard_has_data(prometheus: Prometheus) -> None:
    queries = queries_of_dashboard()
    eventually(lambda: not without_data(prometheus, queries), lambda: without_data(prometheus, queries))


def test_every_query_of_the_alert_rules_has_data(prometheus: Prometheus) -> None:
    queries = queries_of_rules()
    eventually(lambda: not without_data(prometheus, queries), lambda: without_data(prometheus, queries))


def test_a_query_of_what_is_not_told_has_none(prometheus: Prometheus) -> None:
    assert without_data(prometheus, ["shardd_nothing_total"]) == ["shardd_nothing_total"]


def test_the_rules_are_evaluated_and_none_fires_on_a_server_in_order(prometheus: Prometheus) -> None:
    def evaluated() -> bool:
        groups = (prometheus.get("rules") or {"groups": []})["groups"]
        return bool(groups) and all(rule["health"] == "ok" for rule in groups[0]["rules"])

    eventually(evaluated, prometheus.about)
    rules = prometheus.get("rules")["groups"][0]["rules"]
    firing = {rule["name"] for rule in rules if rule["state"] == "firing"}
    busy = {"SharddWithoutCpu", "SharddDeviceStandsStill"}  # the machine may be
    assert firing <= busy | {"SharddCertificateExpires"}


def test_what_clients_send_is_what_prometheus_counts(server: MetricsServer, prometheus: Prometheus) -> None:
    rate = 'rate(shardd_topic_appended_messages_total{topic="orders"}[30s])'
    eventually(lambda: prometheus.values(rate) > [0.0], prometheus.about)
    eventually(lambda: prometheus.values('shardd_group_lag_seconds{group="billing"}') > [1.0], prometheus.about)
    told = prometheus.values('shardd_topic_appended_messages_total{topic="orders"}')
    assert 0 < told[0] <= server.scrape().value("shardd_topic_appended_messages_total", stream="shop", topic="orders")


def test_a_shard_that_was_replaced_is_an_alert(tmp_path: Path) -> None:
    def fires() -> bool:
        alerts = (scraping.get("alerts") or {"alerts": []})["alerts"]
        return any(each["labels"]["alertname"] == "SharddShardRestarted" for each in alerts)

    with MetricsServer(tmp_path / "data") as server:
        scraping = Prometheus(tmp_path, server.metrics_address)
        try:
            eventually(lambda: scraping.values('shardd_shard_starts_total{shard="1"}') == [1.0], scraping.about)
            assert not fires()
            os.kill(server.worker_pids()[1], signal.SIGKILL)
            eventually(fires, scraping.about)
        finally:
            scraping.close()


def test_promtool_finds_nothing_wrong(server: MetricsServer) -> None:
    assert PROMTOOL is not None
    for what in (["check", "config", str(CONFIG / "prometheus" / "prometheus.yml")], ["check", "rules", str(RULES)]):
        subprocess.run([PROMTOOL, *what], check=True, capture_output=True, timeout=60)
    for accept in ("text/plain", OPEN_METRICS):
        assert server.ask("/metrics", {"Accept": accept}).status == 200
    text = server.ask("/metrics").text
    linted = subprocess.run(
        [PROMTOOL, "check", "metrics"], input=text, capture_output=True, text=True, timeout=60, check=False
    )
    assert "error" not in linted.stderr.lower() and linted.returncode in (0, 3), linted.stderr


def test_prometheus_shows_a_token(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("a-token-of-20-letters\n")
    with MetricsServer(tmp_path / "data", {"SHARDD_METRICS_TOKEN_FILE": str(file)}) as server:
        scraping = Prometheus(tmp_path, server.metrics_address, file)
        try:
            eventually(lambda: scraping.values("shardd_ready") == [1.0], scraping.about)
        finally:
            scraping.close()
