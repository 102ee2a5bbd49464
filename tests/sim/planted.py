"""Planted faults: each makes one promise false, so that the simulator can show that it would notice."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from shardd.engine import SegmentInfo
from shardd.log.recovered import Recovered
from shardd.metadata.apply import apply
from shardd.metadata.records import HEADER, decode_record
from shardd.metadata.replica import MetadataReplica
from shardd.metadata.writer import MetadataWriter
from shardd.runtime.disk import Disk
from tests.sim.disk import SimDisk

RECORD_HEADER_BYTES = 64


class Planted:
    """Nothing planted: the code as it is."""

    name = ""
    fences = True  # an owner refuses requests of members that lost the partition
    log = ""  # which fault the log's world has
    first_seed = 1  # where the test begins to search

    def disk(self, disk: SimDisk) -> Disk:
        return disk

    def writer(self, *arguments: Any, **named: Any) -> MetadataWriter:
        return MetadataWriter(*arguments, **named)

    def replica(self, *arguments: Any, **named: Any) -> MetadataReplica:
        return MetadataReplica(*arguments, **named)


class _NoSync(SimDisk):
    """Says that everything is on the device."""

    def __init__(self, disk: SimDisk) -> None:
        self.__dict__.update(disk.__dict__)

    def fdatasync(self, descriptor: int) -> None:
        self._enter("fdatasync")


class AnswerBeforeSync(Planted):
    name = "answer before fsync"
    log = name

    def disk(self, disk: SimDisk) -> Disk:
        return _NoSync(disk)


class _DisorderlyReplica(MetadataReplica):
    """Takes a record for applied when it arrives, and applies every fourth one behind its successor."""

    _held: bytes | None = None

    async def _apply(self, data: bytes) -> None:
        if self._held is None and self.state.index % 4 == 3:
            self._held = data
            return
        held, self._held = self._held, None
        if held is None:
            await super()._apply(data)
            return
        for each in (data, held):
            index: int = HEADER.unpack_from(each)[1]
            record, _ = decode_record(memoryview(each), 0, _previous(each, held, self.state.digest), index)
            await self._publish(apply(self.state, record), record)

    def _has(self, index: int, payload: bytes) -> bool:
        return self._held is not None or super()._has(index, payload)


def _previous(data: bytes, first: bytes, digest: bytes) -> bytes:
    return digest if data is first else first[-32:]


class DisorderlyReplica(Planted):
    name = "replica applies out of order"

    def replica(self, *arguments: Any, **named: Any) -> MetadataReplica:
        return _DisorderlyReplica(*arguments, **named)


class _ForgetfulWriter(MetadataWriter):
    def _remember(self, number: int, index: int, new_id: int) -> None:
        """Knows no submission when it comes again."""


class SubmissionTwice(Planted):
    name = "submission applied twice"

    def writer(self, *arguments: Any, **named: Any) -> MetadataWriter:
        return _ForgetfulWriter(*arguments, **named)


class StaleCommit(Planted):
    name = "stale member's commit accepted"
    fences = False
    first_seed = 31


class _TrustingDisk(SimDisk):
    """What the start of shard 0 reads counts as synced: its first fdatasync does nothing."""

    _trusts = True

    def __init__(self, disk: SimDisk) -> None:
        self.__dict__.update(disk.__dict__)

    def fdatasync(self, descriptor: int) -> None:
        if self._trusts:
            self._trusts = False
            self._enter("fdatasync")
        else:
            super().fdatasync(descriptor)


class TrustUnsynced(Planted):
    name = "recovery trusts un-synced bytes"
    log = name

    def disk(self, disk: SimDisk) -> Disk:
        return _TrustingDisk(disk)


def trusting_recovery(directory: Path) -> Recovered:
    """As `shardd.log.recovery.open_partition`, but believes what the headers say and looks at no checksum."""
    found = Recovered()
    timestamp = 0
    for log in sorted(directory.glob("*.log")):
        data, start, at, count, first = log.read_bytes(), int(log.stem), 0, 0, 0
        index = bytearray()
        while at + RECORD_HEADER_BYTES <= len(data):
            length = RECORD_HEADER_BYTES + sum(struct.unpack_from("<II", data, at + 48))
            offset, stamp = struct.unpack_from("<QQ", data, at + 24)
            if at + length > len(data) or offset != start + count:
                break
            timestamp, first = stamp, first or stamp
            at, count = at + length, count + 1
            index += struct.pack("<IIQ", offset - start, at, stamp)
        log.with_suffix(".index").write_bytes(index)
        found.segments.append(SegmentInfo((start, at, count, first or timestamp, timestamp, 0, 0, 0)))
    return found


class LostPurge(Planted):
    name = "lost purge"
    log = name


class OffsetsOutsideSync(Planted):
    name = "stored offsets outside the sync"
    log = name


class ExpiresEarly(Planted):
    name = "expires early"
    log = name
    first_seed = 23


class ExpiresLate(Planted):
    name = "expires late"
    log = name


class BlocksOfOthers(Planted):
    name = "blocks of others"
    log = name


class PastTheArchive(Planted):
    name = "past the archive"
    log = name


class ProducersBelieved(Planted):
    name = "producers believed after a power cut"
    log = name
    first_seed = 117


class ProducersLostAtRoll(Planted):
    name = "producers lost at a roll"
    log = name


class SequenceTwice(Planted):
    name = "sequence accepted twice"
    log = name


class HoleAccepted(Planted):
    name = "hole accepted"
    log = name


class StaleEpoch(Planted):
    name = "stale epoch accepted"
    log = name


ALL: list[type[Planted]] = [
    AnswerBeforeSync,
    DisorderlyReplica,
    SubmissionTwice,
    StaleCommit,
    TrustUnsynced,
    LostPurge,
    OffsetsOutsideSync,
    ExpiresEarly,
    ExpiresLate,
    BlocksOfOthers,
    PastTheArchive,
    ProducersBelieved,
    ProducersLostAtRoll,
    SequenceTwice,
    HoleAccepted,
    StaleEpoch,
]


def planted_by_name(name: str) -> Planted:
    """`Planted` itself for no name."""
    return next((each for each in ALL if each.name == name), Planted)()
