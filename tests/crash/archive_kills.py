"""`make crash-archive`: kill -9 at each step on which a segment of a topic with `archive=required` leaves its log, is
made an entry of the spool, copied to a directory, acknowledged and deleted.

    python -m tests.crash.archive_kills [--kills N] [--seed N] [--lanes N] [--engine io_uring|epoll]

Lanes, kills and the judge of what is served are those of clean_kills.py. Here everything expires soon. In the lanes
*directory* the server itself copies entries to a plain directory; in the lanes *acks* this program is the archive: it
takes what it finds in the spool and acknowledges it. In the end every message that was acknowledged to its sender must
be in the archive, once, at its offset, and no entry may have come to the archive twice.
"""

from __future__ import annotations

import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from shardd.log import layout, spool
from shardd.log.spool import Acknowledgement, SpoolManifest
from tests.crash.clean_kills import CLEANING, SERVING, Kind, Lane, Step, main
from tests.crash.fault_control import TORN
from tests.crash.kill_figures import ENGINES
from tests.support import wire

ENTRIES: Final = (
    *SERVING,
    Step("a log leaves for the archive, or is gathered", "rename", ".log$", 4),
    Step("an index leaves for the archive, or is gathered", "rename", ".index$", 4),
    Step("a manifest leaves for the archive, or is gathered", "rename", ".manifest$", 4),
    Step("an entry is begun", "mkdir", ".building$", 2),
    Step("the marker of an entry is written", "write", ".building/incarnation.tmp$", 2, TORN),
    Step("a file of an entry is written", "open", ".building/", 4),
    Step("what an entry says is written", "write", "/manifest.json.tmp$", 2),
    Step("half of what an entry says is written", "write", "/manifest.json.tmp$", 2, TORN),
    Step("what an entry says is synced", "sync", "/manifest.json.tmp$", 2),
    Step("what an entry says gets its name", "rename", "/manifest.json.tmp$", 2),
    Step("an entry gets its name", "rename", ".building$", 2),
    Step("the name of an entry is synced", "sync", "/spool/0/0/0$", 2),
    Step("an acknowledged entry leaves", "rename", "/spool/0/0/0/", 2),
    Step("the trash is emptied", "unlink", "/trash/"),
)
COPIES: Final = (
    Step("a copy is begun", "mkdir", ".copying$", 2),
    Step("a file is copied", "write", ".copying/", 5),
    Step("half of a file is copied", "write", ".copying/", 5, TORN),
    Step("a copy is synced", "sync", ".copying/", 5),
    Step("names of a copy are synced", "sync", ".copying$", 2),
    Step("a copy gets its name", "rename", ".copying$", 2),
    Step("the name of a copy is synced", "sync", "/target/0/0/0$", 2),
    Step("an ACK is written", "write", "/ACK.tmp$", 2),
    Step("half of an ACK is written", "write", "/ACK.tmp$", 2, TORN),
    Step("an ACK is synced", "sync", "/ACK.tmp$", 2),
    Step("an ACK gets its name", "rename", "/ACK.tmp$", 2),
)
KINDS: Final = (
    Kind("archive in a directory", ENTRIES + COPIES, expiry_us=1_500_000),
    Kind("archive by acks", ENTRIES, expiry_us=1_500_000),
    Kind("archive of what is above a count", ENTRIES + CLEANING, kept=200),
)
_RECORD_HEADER: Final = 64
# The thread of the archive has the least priority: beside much other work a step of it takes a while.
STEP_S: Final = 300.0
WHOLE_S: Final = 3600.0


class ArchiveLane(Lane):
    """`acks`: this program is the archive."""

    def __init__(self, root: Path, kind: Kind, seed: int, engines: Sequence[str] = ENGINES) -> None:
        self.acks = kind.name == "archive by acks"
        self.target = root / "target"
        self.taken: dict[int, bytes] = {}  # payloads by offset that this program has archived
        super().__init__(root, kind, seed, engines)

    def settings(self) -> dict[str, str]:
        return {} if self.acks else {"SHARDD_SYSTEM_ARCHIVE_DIRECTORY": str(self.target)}

    def chosen(self) -> dict[str, str]:
        return super().chosen() | {"archive": "required"}

    def look(self, connection: wire.Wire) -> None:
        super().look(connection)
        if self.acks:
            self._archive()

    def _archive(self) -> None:
        """Everything that waits; the server may be killed at any moment of it."""
        for entry in spool.entries(spool.spool_directory(self.server.data_dir)):
            try:
                manifest = spool.read_entry(entry)
                if spool.read_acknowledgement(entry, manifest) is None:
                    found = messages_in(entry, manifest)
                    if found.keys() & self.taken.keys():
                        self.figures.findings.append(f"{entry.name} comes to the archive twice")
                    self.taken |= found
                    spool.acknowledge(entry, Acknowledgement(manifest.digest, manifest.records, "test"))
            except FileNotFoundError:  # it was acknowledged, and the server has removed it
                continue

    def archived(self) -> dict[int, bytes]:
        if self.acks:
            return self.taken
        found: dict[int, bytes] = {}
        for entry in spool.entries(self.target):
            manifest = spool.read_entry(entry)
            spool.verify(entry, manifest)
            more = messages_in(entry, manifest)
            if found.keys() & more.keys():
                self.figures.findings.append(f"{entry.name}: its messages are twice in the archive")
            found |= more
        return found

    def expire_all(self) -> None:
        super().expire_all()
        progress, end = "", time.monotonic() + WHOLE_S
        deadline = time.monotonic() + STEP_S  # of one step: how many there are depends on the load
        while time.monotonic() < min(deadline, end) and not self._is_done():
            if self.acks:
                self._archive()
            time.sleep(0.1)
            if (now := " ".join(sorted(self._waiting()))) != progress:
                progress, deadline = now, time.monotonic() + STEP_S
        self.check_archive(self.archived())

    def _waiting(self) -> list[str]:
        data = self.server.data_dir
        return [
            each.name
            for each in (*layout.incoming_directory(data).iterdir(), *spool.entries(spool.spool_directory(data)))
        ]

    def _is_done(self) -> bool:
        return not self._waiting()

    def check_archive(self, archived: dict[int, bytes]) -> None:
        """All that was acknowledged, and nothing that nobody has sent."""
        offsets, waiting = sorted(archived), self._waiting()
        if waiting:
            self.figures.findings.append(
                f"{len(waiting)} entries are left, the last offset archived is {offsets[-1:]};"
                f" the server's last lines: {self.server.log()[-1500:]}"
            )
        if offsets != list(range(len(offsets))):
            self.figures.findings.append(f"{len(offsets)} offsets are archived, and not those from 0 on")
        places = {each.payload: each for each in self.observer.sent}
        there = {archived[offset] for offset in offsets}
        if len(there) < len(offsets) or there - places.keys():
            self.figures.findings.append("a message is archived twice, or nobody has sent it")
        moved = [
            places[archived[at]]
            for at in offsets
            if archived[at] in places and places[archived[at]].offset not in (None, at)
        ]
        missing = [
            each
            for each in self.observer.sent
            if each.acknowledged and each.payload not in there
            and not (waiting and offsets and each.offset is not None and each.offset > offsets[-1])  # may be on its way
        ]  # fmt: skip
        if missing or moved:
            last = [each.offset for each in missing[:3]]
            self.figures.findings.append(
                f"deleted without an archive: {len(missing)} messages, {last}; moved {len(moved)}"
            )
        self.figures.counts["archived"] += len(offsets)


def messages_in(entry: Path, manifest: SpoolManifest) -> dict[int, bytes]:
    """Payloads by offset, of a plain log."""
    data, at, found = (entry / manifest.file).read_bytes(), 0, {}
    while at < len(data):
        offset, headers, payload = *struct.unpack_from("<Q", data, at + 24), *struct.unpack_from("<II", data, at + 48)
        begin = at + _RECORD_HEADER
        found[offset] = data[begin : begin + payload]
        at = begin + headers + payload
    return found


if __name__ == "__main__":
    sys.exit(main("crash-archive", KINDS, ArchiveLane))
