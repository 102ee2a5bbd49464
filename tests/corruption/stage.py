"""A real worker with one partition whose files are damaged, again and again, before it is opened or while it is."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from shardd.log import layout
from shardd.log.blocks import Codec
from shardd.log.compressing import Outcome, finish, prepare, put_in_place
from shardd.log.incarnation import read_incarnation
from shardd.log.segment_reader import segment_starts
from shardd.protocol.namespaces import namespace
from shardd.runtime.throttle import Throttle
from shardd.worker.partition_changes import identity_in
from tests.support import wire
from tests.unit.services_harness import Workers

PLACE: Final = (0, 0, 0)
MESSAGES: Final = 20
SETTINGS: Final = {"system.scrubber.enabled": "false", "system.partition.sync_interval": "1 h"}
DAMAGED: Final = 4027
SEALED_WITHIN_S: Final = 60.0


@dataclass(slots=True)
class Seen:
    """What a reader got: records by offset, statuses of the offsets that it did not get."""

    served: dict[int, bytes] = field(default_factory=dict)
    refused: dict[int, int] = field(default_factory=dict)
    broken: int = 0  # connections that closed in the middle of an answer


class Stage:
    """A context manager. `files` is what the partition directory held when all was whole. `codec`: of its sealed
    segments."""

    def __init__(self, data: Path, settings: Mapping[str, str] | None = None, codec: Codec | None = None) -> None:
        size = "512 B" if codec is None else "2048 B"  # large enough to become smaller
        self._workers = Workers(data, segment_size=size, settings={**SETTINGS, **(settings or {})})
        self._codec, self._repeats = codec, 5 if codec is None else 60
        self.directory = layout.partition_directory(data, *PLACE)

    def __enter__(self) -> Self:
        self._workers.__enter__()
        self.wire = self._workers.connect()
        self.wire.create_topic(self.wire.create_stream("s"), "t", 1)
        for number in range(MESSAGES):
            self.wire.send(0, 0, wire.to_partition(0), [self._message(number)])
        self.messages = self.wire.read_all(0, 0, 0)
        assert [each.offset for each in self.messages] == list(range(MESSAGES))
        rolled = sum(path.suffix == ".log" for path in self.directory.iterdir()) - 1
        self.wait_for("sealing.segments", rolled, SEALED_WITHIN_S)  # its manifests would replace those that tests put
        self._workers.call(self._close())
        self._compress()
        self.files = {path.name: path.read_bytes() for path in self.directory.iterdir() if path.is_file()}
        self.starts = sorted(int(name[:20]) for name in self.files if name.endswith(".index"))
        assert len(self.starts) > 2 and self.files[f"{self.starts[-1]:020}.log"], (
            "the last message is in the active one"
        )
        self._workers.call(self._open())
        return self

    def _message(self, number: int) -> bytes:
        return wire.message(b"message %d " % number * self._repeats, b"head")

    def _compress(self) -> None:
        for start in segment_starts(self.directory)[:-1] if self._codec is not None else []:
            incarnation = read_incarnation(self.directory)
            assert incarnation is not None and self._codec is not None
            found = prepare(self.directory, start, incarnation, self._codec, Throttle())
            assert found.outcome is Outcome.READY and put_in_place(self.directory, start)
            finish(self.directory, start)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._workers.__exit__(kind, error, trace)

    @property
    def _worker(self) -> Any:
        return self._workers._threads[0]._worker

    def put(self, changes: dict[str, bytes], *, while_open: bool) -> None:
        """The files of the beginning with these changes, found at the opening or changed under an open partition."""
        self._workers.call(self._close())
        for path in self.directory.iterdir():
            if path.is_file() and path.name not in self.files:
                path.unlink()
        for name, content in (self.files if while_open else self.files | changes).items():
            (self.directory / name).write_bytes(content)
        self._workers.call(self._open())
        for name, content in changes.items() if while_open else ():
            with (self.directory / name).open("r+b") as file:  # in place: descriptors may be open
                file.write(content)
                file.truncate()

    def figures(self, name: str) -> int:
        """A metric, by its name as "part.figure"."""
        part, _, figure = name.partition(".")

        async def read() -> int:
            worker = self._worker
            source = {"damage": worker._surveys, "scrubber": worker._scrubber, "sealing": worker._sealer}[part]
            return int((source.gauges() | source.counters())[figure])

        return self._workers.call(read())

    def wait_for(self, name: str, least: int, seconds: float) -> None:
        deadline_s = time.monotonic() + seconds
        while self.figures(name) < least:
            assert time.monotonic() < deadline_s, f"{name} is {self.figures(name)} and not {least}"
            time.sleep(0.02)

    async def _close(self) -> None:
        incarnation = self._worker._partitions._open.pop(PLACE)
        self._worker._partitions._damaged.discard(PLACE)
        self._worker.engine.partition_close(namespace(*PLACE), incarnation)
        self._worker._surveys._surveyed_s.clear()

    async def _open(self) -> None:
        partitions, state = self._worker._partitions, self._worker._metadata.state
        identity = identity_in(state, PLACE)
        [outcome] = partitions._recover_all([(PLACE, identity)], state, partitions._clock())
        partitions._open_as(PLACE, identity, state, str(self.directory), outcome)

    def read(self, count: int = 100) -> Seen:
        """Every offset from 0 on, an answer at a time; behind what is refused it goes on at the next offset."""
        seen = Seen()
        at = 0
        while at < MESSAGES:
            try:
                messages = self.wire.poll(0, 0, 0, value=at, count=count).messages
            except wire.StatusError as refusal:
                seen.refused[at] = refusal.status
                at += 1
                continue
            except ConnectionError:  # a part of the answer was out: no other end is honest
                seen.broken += 1
                assert seen.broken <= MESSAGES, "the connection closes again and again"
                self.wire = self._workers.connect()
                continue
            if not messages:
                break
            seen.served |= {each.offset: each.raw for each in messages}
            at = messages[-1].offset + 1
        return seen

    def first_since(self, timestamp_us: int) -> int:
        """Offset that a poll by timestamp gives; -1 for none, minus the status for a refusal."""
        try:
            messages = self.wire.poll(0, 0, 0, strategy=wire.POLL_TIMESTAMP, value=timestamp_us, count=1).messages
        except wire.StatusError as refusal:
            return -refusal.status
        return messages[0].offset if messages else -1

    def send(self) -> int:
        """Offset of one more message, read back."""
        self.wire.send(0, 0, wire.to_partition(0), [wire.message(b"one more")])
        [newest] = self.wire.poll(0, 0, 0, strategy=wire.POLL_LAST, count=1).messages
        assert newest.payload == b"one more"
        return newest.offset


def judge(stage: Stage, lost: Iterable[int], *, torn: bool) -> list[str]:
    """What is wrong with the answers of a partition in which the messages `lost`, and only they, cannot be read.
    `torn`: they are the last ones and may be gone without a trace."""
    expected, gone = {each.offset: each.raw for each in stage.messages}, set(lost)
    findings: list[str] = []
    for count in (100, 1):
        seen = stage.read(count)
        served, missing = seen.served, gone - seen.served.keys()
        findings += [f"offset {at}: wrong bytes served" for at, raw in served.items() if expected.get(at) != raw]
        findings += [f"offset {at}: lost, {seen.refused.get(at)}" for at in expected.keys() - gone - served.keys()]
        for at in missing if not torn else ():
            if seen.refused.get(at) != DAMAGED:
                findings.append(f"offset {at}: status {seen.refused.get(at)}")
    findings += timestamp_findings(stage, gone, torn=torn)
    newest = stage.send()
    if newest != (min(gone) if torn and gone else MESSAGES):
        findings.append(f"the next message got offset {newest}")
    return findings


def timestamp_findings(stage: Stage, gone: set[int], *, torn: bool) -> list[str]:
    findings = []
    for right, message in enumerate(stage.messages):
        found = stage.first_since(message.timestamp_us)
        if found == right and right not in gone:
            continue
        near = right in gone or right - 1 in gone  # the damaged message may be the first one
        if not near or found not in (-DAMAGED, -1 if torn else -DAMAGED):
            findings.append(f"first message since {right}: {found}")
    return findings
