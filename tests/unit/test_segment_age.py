"""`segment_age_max`: the job seals an old segment when nobody sends, also without retention."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

import pytest

from shardd.maintenance.retention_limits import RetentionLimits
from shardd.metadata.state import Topic
from shardd.protocol.extensions import ExtensionCode
from shardd.protocol.topic_settings import SetTopicSettings
from tests.support import wire
from tests.support.wire import Wire
from tests.unit.services_harness import Workers

WAIT_S: Final = 30.0
AGE_US: Final = 300_000


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    settings = {"data_maintenance.messages.cleaner_enabled": "true", "data_maintenance.messages.interval": "100 ms"}
    with Workers(tmp_path_factory.mktemp("data"), settings=settings) as running:
        running.connect().create_stream("st")
        yield running


def segments(root: Wire, topic: str) -> int:
    [partition] = root.partitions("st", topic)
    return partition.segments_count


@pytest.mark.parametrize("retention", ["on", "off"])
def test_the_job_seals_an_idle_segment_once(workers: Workers, monkeypatch: pytest.MonkeyPatch, retention: str) -> None:
    def age_us(_limits: RetentionLimits, topic: Topic) -> int:
        return AGE_US if topic.name == f"aged-{retention}" else 0

    monkeypatch.setattr(RetentionLimits, "segment_age_us", age_us)  # a value that may be set takes a minute
    root = workers.connect()
    for name in ("aged", "other"):
        root.create_topic("st", f"{name}-{retention}", 1)
        change = SetTopicSettings("st", f"{name}-{retention}", (("retention", retention),))
        root.request(ExtensionCode.SET_TOPIC_SETTINGS, change.encode())
        root.send("st", f"{name}-{retention}", wire.to_partition(0), [wire.message(b"m")])
    until = time.monotonic() + WAIT_S
    while segments(root, f"aged-{retention}") < 2 and time.monotonic() < until:
        time.sleep(0.02)
    time.sleep(5 * AGE_US / 1e6)
    assert segments(root, f"aged-{retention}") == 2, "an empty one does not grow old"
    assert segments(root, f"other-{retention}") == 1
    root.send("st", f"aged-{retention}", wire.to_partition(0), [wire.message(b"m")])
    assert len(root.read_all("st", f"aged-{retention}", 0)) == 2
