"""Every file of docs/files.md with each of four faults, at a start and while the server runs: the messages are served,
or the server says one sentence and does not start where the page says so."""

from __future__ import annotations

import errno
import os
import re
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from _pytest.mark import ParameterSet

from shardd.protocol.codes import Code
from shardd.protocol.errors import Status
from shardd.protocol.producers import ProducerEpoch
from tests.crash import faults
from tests.crash.fault_control import FaultControl
from tests.server.test_files_page import rows
from tests.support import wire
from tests.support.every_file import ENV, expected, fill, numbers_in, partition_of, payload, send_once
from tests.support.server import Server

UNREADABLE, NO_ROOM, TOO_LARGE, CUT = "unreadable", "without room", "too large", "cut off"
FAULTS: Final = (UNREADABLE, NO_ROOM, TOO_LARGE, CUT)
TOO_MANY_BYTES: Final = (2 << 30) + 1  # no reader of any of these files takes as many
PLAIN, PACKED = (str(partition_of(Path(), topic)) for topic in (0, 1))

# Rows of docs/files.md. Those of logs have their tests of damage (tests/corruption), those of imports theirs.
FILES: Final = {
    ".lock": ".lock",
    "info.json": "info.json",
    "state.messages": "state.messages",
    "state.snapshot": "state.snapshot",
    "state.reserve": "state.reserve",
    "producers.boot": "producers.boot",
    "retention.clock": "retention.clock",
    "runtime/current_config.toml": "runtime/current_config.toml",
    "P/incarnation": f"{PLAIN}/incarnation",
    "P/consumer-offsets": f"{PLAIN}/consumer-offsets",
    "P/producers": f"{PLAIN}/producers",
    "P/<start>.index, sealed": f"{PLAIN}/00000000000000000000.index",
    "P/<start>.index, active": f"{PLAIN}/00000000000000000390.index",
    "P/<start>.index, compressed": f"{PACKED}/00000000000000000000.index",
    "P/<start>.manifest, sealed": f"{PLAIN}/00000000000000000000.manifest",
    "P/<start>.manifest, active": f"{PLAIN}/00000000000000000390.manifest",
    "P/<start>.manifest, compressed": f"{PACKED}/00000000000000000000.manifest",
    "E/manifest.json": "archive/spool/0/2/0/*-00000000000000000000-*/manifest.json",
    "E/incarnation": "archive/spool/0/2/0/*-00000000000000000000-*/incarnation",
    "E/<start>.manifest": "archive/spool/0/2/0/*-00000000000000000000-*/*.manifest",
    "<any>.tmp": "retention.clock.tmp",
    "state.messages.torn[.n]": "state.messages.torn",
    "runtime/liftbridge.nats-password": "runtime/liftbridge.nats-password",
    "trash/<name>": "trash/left",
    "archive/incoming/<name>": "archive/incoming/left",
    "E/ACK": "archive/spool/0/2/0/*-00000000000000000000-*/ACK",
    "E/imported": "archive/spool/0/2/0/*-00000000000000000000-*/imported",
    "E/<start>.log": "archive/spool/0/2/0/*-00000000000000000000-*/00000000000000000000.log",
    "E/<start>.blocks": "archive/spool/0/2/0/*-00000000000000000000-*/00000000000000000000.blocks",
    "E/<start>.index": "archive/spool/0/2/0/*-00000000000000000000-*/00000000000000000000.index",
    "P/imported": f"{PLAIN}/imported",
    "P/<start>.torn[.n]": f"{PLAIN}/00000000000000000390.torn",
    "P/offsets/<kind>/<id>": f"{PLAIN}/offsets/consumers/7",
    "P/offsets.imported/<name>": f"{PLAIN}/offsets.imported/consumers.7",
    "P.unmarked[.n]/<name>": f"{PLAIN}.unmarked/00000000000000000000.log",
    "state/<name>": "state/log.imported",
    "streams/liftbridge.import/<name>": "streams/liftbridge.import/left",
    ".sockets/<number>": ".sockets/1",
}
# What is the log itself, and what only a start with a door for HTTP reads.
ELSEWHERE: Final = {
    "P/<start>.log": "tests/corruption/test_corruption.py",
    "P/<start>.blocks": "tests/corruption/test_corruption.py",
    "access.key": "tests/doors/test_http_logins.py",
}
# A start without them could not tell what is in the directory.
NO_START: Final = {
    "info.json": {UNREADABLE, TOO_LARGE, CUT},
    "state.messages": {UNREADABLE, NO_ROOM, TOO_LARGE},
    "state.snapshot": {UNREADABLE, TOO_LARGE, CUT},
}
CASES: Final = [(name, fault) for name in FILES for fault in FAULTS]


# What a running server writes all the time: the short form of faults while it runs.
WRITTEN: Final = ("state.messages", "P/consumer-offsets", "P/producers", "P/<start>.index, active")


# What such a server refuses meanwhile, beside what it serves. Files that are not here it only reads at a start, or it
# goes on without them.
REFUSED: Final = {
    ("state.messages", NO_ROOM): {"change": Status.CANNOT_WRITE_TO_FILE},
    ("P/consumer-offsets", NO_ROOM): {"store": Status.CANNOT_WRITE_TO_FILE},
    ("P/producers", NO_ROOM): {"send_once": Status.CANNOT_WRITE_TO_FILE, "flush": Status.CANNOT_SAVE_INDEX_TO_SEGMENT},
    ("P/<start>.index, active", NO_ROOM): {"flush": Status.CANNOT_SAVE_INDEX_TO_SEGMENT},
}


def short_or_slow(*short: tuple[str, str]) -> list[ParameterSet]:
    return [pytest.param(*case, marks=[] if case in short else [pytest.mark.slow]) for case in CASES]


RUNNING: Final = [
    each for each in short_or_slow(*((name, NO_ROOM) for name in WRITTEN)) if each.values[0] != "<any>.tmp"
]


class Filled(NamedTuple):
    data: Path
    who: ProducerEpoch
    control: FaultControl


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    directory = tmp_path_factory.mktemp("faults")
    with Server(directory / "data", env=ENV) as server:
        who = fill(server)
    return Filled(server.data_dir, who, FaultControl(directory))


@pytest.fixture
def server(filled: Filled, tmp_path: Path) -> Iterator[Server]:
    shutil.copytree(filled.data, tmp_path / "data")
    running = Server(tmp_path / "data", env=ENV | filled.control.environment)
    yield running
    filled.control.disarm()
    running.stop()


def the_file(server: Server, name: str) -> Path:
    """Some of the files are not there at a start."""
    parts = FILES[name].split("/")
    path = server.data_dir
    for number, part in enumerate(parts):
        path = next(path.glob(part)) if "*" in part and number < len(parts) - 1 else path / part
    if "*" in path.name:
        [path] = path.parent.glob(path.name)
    if not path.exists():
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(bytes(100))
    return path


def hurt(control: FaultControl, path: Path, fault: str) -> None:
    part = str(path)[-220:]
    if fault == UNREADABLE:
        control.arm("read", part, 1, errno.EIO, for_ever=True)
    elif fault == NO_ROOM:
        control.arm("write", part, 1, errno.ENOSPC, for_ever=True)
    else:
        os.truncate(path, TOO_MANY_BYTES if fault == TOO_LARGE else path.stat().st_size // 2)


def is_started(server: Server) -> bool:
    """False: it has ended with a sentence. Its file of settings may be the one that is hurt."""
    before = server.log().count(", ready") if server.log_path.exists() else 0
    process = server.spawn()
    faults.wait_until(
        lambda: process.poll() is not None or server.log().count(", ready") > before, "the server does not start"
    )
    if process.poll() is not None:
        assert "Traceback" not in server.log()
        return False
    server.address = re.findall(r" tcp ([^,\s]+)[^\n]*, ready", server.log())[-1]
    return True


def require_served(server: Server, *more: int) -> None:
    """`more`: numbers of messages of the plain topic behind those of the start."""
    with wire.connect(server.address) as root:
        assert numbers_in(root, "plain") == [*expected("plain"), *more]
        assert numbers_in(root, "packed") == expected("packed")


def works(root: wire.Wire) -> dict[str, int]:
    """What else makes a running server read and write its files: the status of each."""
    place = wire.identifier("s") + wire.identifier("plain")
    stored = wire.consumer(1) + place + wire.optional_partition(0) + struct.pack("<Q", 7)
    return {
        "store": root.status(wire.STORE_OFFSET, stored),
        "flush": root.status(Code.FLUSH_UNSAVED_BUFFER, place + struct.pack("<IB", 0, 1)),
        "change": root.status(wire.CREATE_STREAM, wire.str8("more")),
    }


def test_every_row_of_the_page_has_its_cases() -> None:
    rows_here = {name.partition(", ")[0] for name in FILES} | set(ELSEWHERE)
    assert rows_here == {row.name for row in rows()}


@pytest.mark.parametrize(("name", "fault"), short_or_slow(*((name, UNREADABLE) for name in FILES)))
def test_a_file_with_a_fault_at_a_start_costs_no_message(filled: Filled, server: Server, name: str, fault: str) -> None:
    path = the_file(server, name)
    hurt(filled.control, path, fault)
    if fault in NO_START.get(name, ()):
        assert not is_started(server)
        assert str(path) in server.log() or str(server.data_dir) in server.log()
        return
    assert is_started(server)
    require_served(server)


@pytest.mark.parametrize(
    ("name", "fault"),
    RUNNING,
)
def test_a_file_that_gets_a_fault_while_the_server_runs_costs_no_message(
    filled: Filled, server: Server, name: str, fault: str
) -> None:
    assert is_started(server)
    path = the_file(server, name)
    hurt(filled.control, path, fault)
    more = [expected("plain")[-1] + 1]
    with wire.connect(server.address) as root:
        root.send("s", "plain", wire.to_partition(0), [wire.message(payload(more[0]))])
        status = send_once(root, filled.who, 1, [more[0] + 1])
        refused = {work: each for work, each in {"send_once": status, **works(root)}.items() if each != 0}
        if fault in (UNREADABLE, NO_ROOM):
            assert refused == REFUSED.get((name, fault), {})
        else:
            assert status == 0
        more += [more[0] + 1] * (status == 0)
    require_served(server, *more)
    failed = filled.control.disarm()[1]
    assert failed > 0 or (name, fault) not in REFUSED, "the fault has met nothing"
    faults.kill_all(server)
    again = is_started(server)
    assert again is not (fault in (TOO_LARGE, CUT) and fault in NO_START.get(name, ()))
    if again:
        require_served(server, *more)
