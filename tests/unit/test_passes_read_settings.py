"""A setting that changes in the middle of a run of a background pass counts from the next step: whoever was answered
that nothing is deleted without an archive, or nothing at all, or that nothing is compressed, finds it so.

Passes are driven step by step, or by a thread that lets the setting change where it works."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from shardd.config.loader import load_settings
from shardd.log import layout, spool
from shardd.log.sealing import seal_segment
from shardd.log.segment_layout import COMPRESSED
from shardd.maintenance import archiver as archiver_module
from shardd.maintenance import compressor as compressor_module
from shardd.maintenance import retention as retention_module
from shardd.maintenance.archiver import Archiver
from shardd.maintenance.compressor import Compressor
from shardd.maintenance.job import Job
from shardd.maintenance.retention import Retention, _Barriers
from shardd.metadata import commands
from shardd.protocol import requests
from shardd.protocol.extensions import ExtensionCode
from shardd.protocol.namespaces import namespace
from shardd.protocol.topic_settings import SetTopicSettings
from shardd.runtime.throttle import Throttle
from shardd.service.identity import Identity
from tests.support import wire
from tests.unit import log_files
from tests.unit.backup_data import SEGMENT_COUNT, STREAM, TOPIC, DataDirectory
from tests.unit.services_harness import Workers

PARTITIONS: Final = 6
MESSAGES: Final = 20
WAIT_S: Final = 60.0
SETTINGS: Final = {
    "data_maintenance.messages.cleaner_enabled": "true",
    "data_maintenance.messages.interval": "10 h",  # the passes run when the tests say so
    "system.topic.max_size": "unlimited",
}
COVERED: Final = {  # passes that read settings of topics, and what shows that they do so at each step
    retention_module: "test_files_go_to_the_archive_from_the_step_on_that_follows",
    archiver_module: "test_an_entry_of_best_effort_stays_when_its_topic_is_required_by_now",
    compressor_module: "test_nothing_is_compressed_any_more_when_the_setting_was_taken_back_meanwhile",
}


def test_every_pass_that_reads_settings_has_its_test_here() -> None:
    """Every pass that gets the state of the metadata gets it as a call; a new one has to show what it does with it."""
    directory = Path(str(retention_module.__file__)).parent
    reading = {path.stem for path in directory.glob("*.py") if "Callable[[], State]" in path.read_text()}
    assert reading == {str(each.__name__).rpartition(".")[2] for each in COVERED}
    assert set(COVERED.values()) <= set(globals())


@pytest.fixture
def segment_bytes() -> int:
    return 512


@pytest.fixture
def workers(tmp_path: Path, segment_bytes: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    monkeypatch.setattr(compressor_module, "INTERVAL_S", 36_000.0)
    with Workers(tmp_path / "data", segment_size=f"{segment_bytes} B", settings=SETTINGS) as running:
        running.connect().create_stream("st")
        yield running


class Topic:
    """One with full partitions, and the passes of its worker."""

    def __init__(self, workers: Workers, **chosen: str) -> None:
        self.workers, self.root = workers, workers.connect()
        self.worker: Any = workers._threads[0]._worker
        self.data: Path = workers._data
        self.root.create_topic("st", "t", PARTITIONS)
        if chosen:
            self.set(**chosen)
        self.send(bytes(150))

    def send(self, payload: bytes) -> None:
        for partition in range(PARTITIONS):
            for _ in range(MESSAGES):
                self.root.send("st", "t", wire.to_partition(partition), [wire.message(payload)])

    def set(self, **chosen: str) -> None:
        request = SetTopicSettings("st", "t", tuple(chosen.items()))
        self.root.request(ExtensionCode.SET_TOPIC_SETTINGS, request.encode())

    def resize(self, size_bytes: int) -> None:
        services = self.workers.context().services
        identity = Identity(0, self.workers.root_ref().incarnation)
        request = requests.UpdateTopicRequest("st", "t", 1, 0, size_bytes, 1, "t")
        self.workers.call(services.topics.update_topic(identity, request))

    def segments(self) -> int:
        async def count() -> int:
            engine = self.workers.context().engine
            return sum(len(engine.partition_segments(namespace(0, 0, number))) for number in range(PARTITIONS))

        return self.workers.call(count())

    def run_until(self, happened: Callable[[], bool]) -> Iterator[None]:
        """The rest of the run of retention in which it has happened: the engine waits for a second, and for a sync."""

        async def go_on(steps: Iterator[None]) -> bool:
            return next(steps, self) is not self

        deadline_s = time.monotonic() + WAIT_S
        while True:
            steps = self.run_of_retention()
            while self.workers.call(go_on(steps)):
                if happened():
                    return steps
            assert time.monotonic() < deadline_s
            time.sleep(0.05)

    def finish(self, steps: Iterator[None]) -> None:
        async def all_of_it() -> None:
            for _ in steps:
                pass

        self.workers.call(all_of_it())

    def run_of_retention(self) -> Iterator[None]:
        layout.trash_directory(self.data).mkdir(exist_ok=True)
        retention: Retention = self.worker._retention
        return retention._steps(str(layout.trash_directory(self.data) / "1-1-segment"), _Barriers(set(), set(), set()))


class Destinations:
    """The engine, and where its steps of retention were told to put files."""

    def __init__(self, engine: Any) -> None:
        self._engine, self.told = engine, list[str]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def partition_clean(self, *arguments: Any) -> Any:
        self.told.append(arguments[-1])
        return self._engine.partition_clean(*arguments)


@pytest.mark.parametrize("archive", ["required", "best_effort"])
def test_files_go_to_the_archive_from_the_step_on_that_follows(workers: Workers, archive: str) -> None:
    topic = Topic(workers, partition_messages_max="1")
    retention: Any = topic.worker._retention
    engine = retention._engine = Destinations(retention._engine)
    run = topic.run_until(lambda: len(engine.told) == 2)
    trash, incoming = str(layout.trash_directory(topic.data)), str(layout.incoming_directory(topic.data))
    assert all(each.startswith(trash) for each in engine.told)
    topic.set(archive=archive, partition_messages_max="1")
    topic.finish(run)
    after = engine.told[2:]
    assert len(after) >= PARTITIONS - 2 and all(each.startswith(incoming) for each in after)


def test_nothing_is_cleaned_any_more_when_retention_was_ended_meanwhile(workers: Workers) -> None:
    topic = Topic(workers, partition_messages_max="1")
    retention: Any = topic.worker._retention
    engine = retention._engine = Destinations(retention._engine)
    run = topic.run_until(lambda: len(engine.told) == 2)
    topic.set(retention="off")
    topic.finish(run)
    assert len(engine.told) == 2


@pytest.mark.parametrize("change", ["off", "larger", "refuse"])
def test_no_more_is_trimmed_from_the_step_on_that_follows(workers: Workers, change: str) -> None:
    topic = Topic(workers)
    whole = topic.segments()
    topic.resize(2048)
    run = topic.run_until(lambda: topic.segments() < whole)
    left = topic.segments()
    if change == "larger":
        topic.resize(1 << 30)
    else:
        topic.set(**({"retention": "off"} if change == "off" else {"discard": "refuse"}))
    topic.finish(run)
    assert topic.segments() == left > PARTITIONS


class Beside:
    """A turn whose helper thread ends when somebody has changed something."""

    def __init__(self, meanwhile: Callable[[], Any]) -> None:
        self.throttle, self._meanwhile, self.calls = Throttle(), meanwhile, 0

    async def beside(self, function: Callable[..., Any], *arguments: Any) -> Any:
        found = function(*arguments)
        self.calls += 1
        await self._meanwhile()
        return found

    async def on_loop(self, steps: Iterable[object]) -> None:
        for _ in steps:
            pass


@pytest.mark.parametrize("segment_bytes", [20_480])
def test_nothing_is_compressed_any_more_when_the_setting_was_taken_back_meanwhile(workers: Workers) -> None:
    topic = Topic(workers, compression="zstd")
    topic.send(bytes(9000))
    services = workers.context().services
    identity = Identity(0, workers.root_ref().incarnation)

    async def take_back() -> None:
        await services.topic_settings.set_topic_settings(
            identity, SetTopicSettings("st", "t", (("compression", "none"),))
        )

    beside = Beside(take_back)
    compressor: Compressor = topic.worker._compressor
    wait_for_seals(topic)
    workers.call(compressor._work(beside))  # type: ignore[arg-type]
    assert beside.calls == 1, "the segments that follow are not even read"
    left = [path for path in (topic.data / "streams").rglob("*") if COMPRESSED.suffix in path.name]
    assert left == [] and compressor.counters()["segments"] == 0
    topic.set(compression="zstd")

    async def nothing() -> None:
        return

    def compressed() -> bool:
        workers.call(compressor._work(Beside(nothing)))  # type: ignore[arg-type]
        return compressor.counters()["segments"] > 0

    wait_until(compressed, "else the test shows nothing")


def wait_for_seals(topic: Topic) -> None:
    sealer, jobs = topic.worker._sealer, topic.worker._jobs
    wait_until(
        lambda: not topic.workers.call(_read(lambda: sealer.gauges()["waiting"])), "segments wait for their seals"
    )
    wait_until(lambda: not topic.workers.call(_read(lambda: jobs.gauges()["sealing.running"])), "a seal is being made")


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.05)


async def _read(read: Callable[[], int]) -> int:
    return read()


# ---- the archiver ----


class Jobs:
    def add(self, job: Job) -> None:
        self.job = job


class Spooled:
    """Two segments that have left their log, and an archiver that nobody but the test starts."""

    def __init__(self, tmp_path: Path, archive: str) -> None:
        self.data = DataDirectory(tmp_path / "data")
        self.set(archive)
        for start in (0, SEGMENT_COUNT):
            seal_segment(self.data.partition(0), start, self.data.incarnation(0), Throttle())
        prefix = spool.incoming_prefix(self.data.path, (0, 0, 0), self.data.incarnation(0))
        layout.incoming_directory(self.data.path).mkdir(parents=True)
        for start in (0, SEGMENT_COUNT):
            for suffix in ("log", "index", "manifest"):
                file = layout.segment_file(self.data.partition(0), start, suffix)
                file.rename(f"{prefix}-{file.name}")
        loaded = load_settings(None, {}, {"system.archive.spool_max": "1 B"}).settings
        archiver_settings = loaded.system.archive
        self.archiver = Archiver(self.data.path, self.data.state, archiver_settings, Jobs(), lambda: None)  # type: ignore[arg-type]

    def set(self, archive: str) -> None:
        self.data.change(commands.SetTopicSettings(STREAM, TOPIC, (("archive", archive),)))

    def entries(self) -> int:
        return sum(1 for _ in spool.entries(spool.spool_directory(self.data.path)))

    def run(self) -> None:
        self.archiver._run(Throttle())


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "SETTLE_S", 0.0)


def test_an_entry_of_best_effort_stays_when_its_topic_is_required_by_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spooled = Spooled(tmp_path, "best_effort")
    plain = spool.make_entry

    def made(*arguments: Any) -> Any:
        """The last one is made when somebody says what is to be kept: in the middle of the run."""
        entry = plain(*arguments)
        if arguments[1].start == SEGMENT_COUNT:
            spooled.set("required")
        return entry

    monkeypatch.setattr(spool, "make_entry", made)
    spooled.run()
    assert spooled.entries() == 2 and spooled.archiver.counters()["dropped"] == 0
    assert spooled.archiver.gauges()["above_max"] == 1
    spooled.set("best_effort")
    spooled.run()
    assert spooled.entries() == 0 and spooled.archiver.counters()["dropped"] == 2


def test_a_damaged_segment_stays_when_its_topic_is_required_by_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spooled = Spooled(tmp_path, "best_effort")

    def unfit(*_: object) -> None:
        spooled.set("required")
        raise spool.UnfitError("it is damaged")

    monkeypatch.setattr(spool, "make_entry", unfit)
    spooled.run()
    assert spooled.archiver.counters()["dropped"] == 0
    assert len(spool.incoming(spooled.data.path)) == 2


def test_an_entry_of_a_deleted_topic_goes_by_what_was_said_then(tmp_path: Path) -> None:
    spooled = Spooled(tmp_path, "required")
    spooled.run()
    spooled.data.change(commands.DeleteTopic(STREAM, TOPIC))
    spooled.run()
    assert spooled.entries() == 2


def test_a_partition_that_came_after_a_purge_loses_no_file_to_the_archive(tmp_path: Path) -> None:
    """Its directory has the place of the one that the segment has left: an index without a log is no left-over."""
    spooled = Spooled(tmp_path, "required")
    home = spooled.data.partition(0)
    segment = spool.incoming(spooled.data.path)[0]
    later = log_files.segment(0, [4], 9000)
    log_files.write(home, later, incarnation=99)
    layout.segment_log(home, 0).unlink()  # made next
    there = log_files.tree(home)
    prefix = Path(spool.incoming_prefix(spooled.data.path, segment.ids, segment.incarnation))
    prefix.with_name(f"{prefix.name}-{0:020}.index").unlink()
    assert spool.make_entry(spooled.data.path, segment, ("s", "t"), "required", Throttle()) is not None
    assert log_files.tree(home) == there
    log_files.write(home, later, incarnation=99)
    [second] = spool.incoming(spooled.data.path)
    log_files.write(home, log_files.segment(SEGMENT_COUNT, [4], 9000), incarnation=99)
    assert spool.make_entry(spooled.data.path, second, ("s", "t"), "required", Throttle()) is not None
