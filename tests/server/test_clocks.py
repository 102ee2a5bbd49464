"""Clocks that jump, on a real server (docs/adr/0127-one-believed-clock.md): nothing is forgotten, nothing expires, no
stamp is lost by a jump that somebody sets right."""

from __future__ import annotations

import errno
import os
import signal
import struct
import time
from pathlib import Path

import pytest

from shardd.maintenance import clock_memory
from shardd.protocol.producers import ProducedKind
from shardd.runtime.boot import boot_text
from tests.crash.fault_control import HANG, FaultControl
from tests.doors.http_server import HttpServer
from tests.server.test_idempotent_producers import init, once
from tests.server.test_message_deduplication import change, identified, stored
from tests.server.test_retention import ENV, SECOND_US, after_runs, create_topic, offsets, until
from tests.support import wire
from tests.support.certificates import Authority, settings
from tests.support.server import Server
from tests.support.stalls import wait_until
from tests.support.tls_wire import TlsWire, client_context
from tests.support.top import shard_figures
from tests.support.wall_clock import WallClock

HOUR_S = 3600
DAY_S = 24 * HOUR_S
CERTIFICATE_DAYS = 10
STREAM_EXISTS = 1012
JOB_S = 150.0  # that runs once in a minute
NUMBERS = [1, 2, 3, 4, 5]
WITHOUT_CLEANER = {"SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "2"}


@pytest.fixture
def clock(tmp_path: Path) -> WallClock:
    return WallClock(tmp_path)


def send_numbered(root: wire.Wire) -> None:
    root.send("s", "t", wire.to_partition(0), [identified(number) for number in NUMBERS])


def with_window(root: wire.Wire) -> None:
    root.create_stream("s")
    create_topic(root)
    assert change(root, message_deduplication="on", message_deduplication_expiry="1 h") == 0
    send_numbered(root)


def runs_of(server: Server, job: str) -> int:
    return sum(row.get(f"jobs.{job}.runs", 0) for row in shard_figures(server.address))


def await_runs(server: Server, job: str, count: int = 2) -> None:
    wanted, deadline = runs_of(server, job) + count, time.monotonic() + JOB_S
    while runs_of(server, job) < wanted:
        assert time.monotonic() < deadline, server.log()
        time.sleep(0.2)


def test_two_hours_ahead_for_seconds_empty_no_window_of_ids(tmp_path: Path, clock: WallClock) -> None:
    with Server(tmp_path / "data", WITHOUT_CLEANER | clock.env) as server, wire.connect(server.address) as root:
        with_window(root)
        for ahead_s in (2 * HOUR_S, 0, -2 * HOUR_S, 0):
            clock.set(ahead_s)
            send_numbered(root)
        assert stored(root) == NUMBERS


def test_two_hours_ahead_during_a_start_empty_no_window_of_ids(tmp_path: Path, clock: WallClock) -> None:
    server = Server(tmp_path / "data", WITHOUT_CLEANER | clock.env)
    with server, wire.connect(server.address) as root:
        with_window(root)
        until((server.data_dir / clock_memory.FILE_NAME).exists, server)
    clock.set(2 * HOUR_S)
    with server, wire.connect(server.address) as root:
        send_numbered(root)
        clock.set(0)
        send_numbered(root)
        assert stored(root) == NUMBERS


@pytest.mark.parametrize("known", [True, False])
def test_ids_that_came_while_a_right_clock_was_doubted_count_from_its_end_after_a_start(
    tmp_path: Path, clock: WallClock, known: bool
) -> None:
    """By their stamps they are two hours old; without the doubt, so they are."""
    server = Server(tmp_path / "data", WITHOUT_CLEANER | clock.env)
    began_us = time.time_ns() // 1000
    with server, wire.connect(server.address) as root:
        with_window(root)
    clock.set(2 * HOUR_S)
    ended_us = time.time_ns() // 1000 + 2 * HOUR_S * SECOND_US
    doubts = struct.pack("<8Q", began_us, ended_us if known else 0, *[0] * 6)
    remembered = clock_memory.encode(clock_memory.Recalled(ended_us, doubts=doubts), bytes(36), 0)
    (server.data_dir / clock_memory.FILE_NAME).write_bytes(remembered)
    for _ in range(2):  # the second start reads what the first one has written
        with server, wire.connect(server.address) as root:
            until(lambda: (server.data_dir / clock_memory.FILE_NAME).read_bytes() != remembered, server)
            send_numbered(root)
            assert stored(root) == (NUMBERS if known else NUMBERS * 2)


def test_ids_are_known_after_a_start_while_stamps_are_behind_what_is_believed(tmp_path: Path) -> None:
    """By a clock that the boot of the machine found two hours back: all that it stamps counts as stored now."""
    server = Server(tmp_path / "data", WITHOUT_CLEANER)
    with server, wire.connect(server.address) as root:
        with_window(root)
    now_us = time.time_ns() // 1000
    known = clock_memory.Recalled(now_us + 2 * HOUR_S * SECOND_US, now_us)
    since_boot_us = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000
    (server.data_dir / clock_memory.FILE_NAME).write_bytes(clock_memory.encode(known, boot_text(), since_boot_us))
    with server, wire.connect(server.address) as root:
        send_numbered(root)
        assert stored(root) == NUMBERS


def test_eight_days_ahead_forget_no_producer(tmp_path: Path, clock: WallClock) -> None:
    with Server(tmp_path / "data", clock.env) as server, wire.connect(server.address) as root:
        root.create_stream("s")
        create_topic(root)
        who = init(root)
        assert once(root, who, 0, [1]).kind is ProducedKind.STORED
        clock.set(8 * DAY_S)
        await_runs(server, "producers", 1)
        clock.set(0)
        assert init(root, who.producer, who.epoch, renew=True).producer == who.producer
        assert once(root, who, 0, [1]).kind is ProducedKind.DUPLICATE


def test_a_year_ahead_for_one_message_stays_in_no_stamp_and_ends_no_expiry(tmp_path: Path, clock: WallClock) -> None:
    server = Server(tmp_path / "data", ENV | clock.env)
    with server, wire.connect(server.address) as root:
        root.create_stream("s")
        create_topic(root, expiry_us=5 * SECOND_US)
        began_us = time.time_ns() // 1000
        for ahead_s in (0, 365 * DAY_S, 0):
            clock.set(ahead_s)
            root.send("s", "t", wire.to_partition(0), [wire.message(b"%d" % ahead_s)])
        found = root.read_all("s", "t", 0)
        assert all(each.timestamp_us - began_us < HOUR_S * SECOND_US for each in found)
        until(lambda: offsets(root) == [], server)


@pytest.mark.parametrize("ahead_s", [-DAY_S, DAY_S])
def test_a_day_off_neither_ends_nor_hastens_an_expiry(tmp_path: Path, clock: WallClock, ahead_s: int) -> None:
    server = Server(tmp_path / "data", ENV | clock.env)
    with server, wire.connect(server.address) as root:
        root.create_stream("s")
        create_topic(root, expiry_us=4 * SECOND_US)
        create_topic(root, name="kept", expiry_us=20 * HOUR_S * SECOND_US)
        for topic in ("t", "kept"):
            root.send("s", topic, wire.to_partition(0), [wire.message(b"x")])
        clock.set(ahead_s)
        until(lambda: offsets(root) == [], server)
        after_runs(server)
        assert len(root.read_all("s", "kept", 0)) == 1
        direction = "ahead" if ahead_s > 0 else "behind"
        until(lambda: f"the clock is {DAY_S} s {direction} all at once" in server.log(), server)


def test_a_jump_deletes_no_token(tmp_path: Path, clock: WallClock) -> None:
    cleaner = {
        "IGGY_PERSONAL_ACCESS_TOKEN_CLEANER_ENABLED": "true",
        "IGGY_PERSONAL_ACCESS_TOKEN_CLEANER_INTERVAL": "100 ms",
    }
    with Server(tmp_path / "data", cleaner | clock.env) as server, wire.connect(server.address) as root:
        life = struct.pack("<Q", HOUR_S * SECOND_US)
        token = root.request(wire.CREATE_TOKEN, wire.str8("mine") + life)[1:].decode()
        clock.set(2 * HOUR_S)
        await_runs(server, "tokens")
        root.create_token("other")  # those of the user that have expired give way
        with wire.connect(server.address) as other:  # judged by the wall clock
            assert other.status(wire.LOGIN_WITH_TOKEN, wire.str8(token)) != 0
        clock.set(0)
        with wire.connect(server.address) as other:
            other.login_with_token(token)


def test_logins_over_http_are_judged_by_the_wall_clock(tmp_path: Path, clock: WallClock) -> None:
    with HttpServer(tmp_path / "data", clock.env) as server:
        root = server.root()
        assert root.get("/streams").status == 200
        clock.set(48 * HOUR_S)
        assert root.get("/streams").status == 401
        clock.set(0)
        assert root.get("/streams").status == 200


def test_certificates_are_judged_by_the_wall_clock_and_none_is_lost_by_a_jump(tmp_path: Path, clock: WallClock) -> None:
    """Those of clients at each handshake, that of the server when it is read again. An open connection goes on."""
    authority = Authority.make(tmp_path)
    own = authority.sign("own", names="DNS:localhost", days=CERTIFICATE_DAYS)
    files = sorted(path for path in tmp_path.iterdir() if path.suffix in (".pem", ".key"))
    content = [path.read_bytes() for path in files]
    mutual = settings(
        own,
        client_certificates="required",
        client_ca_file=str(authority.certificate),
        client_users="CN:alice=iggy",
    )
    alice = client_context(authority.certificate, authority.sign("alice", days=CERTIFICATE_DAYS))
    with Server(tmp_path / "data", mutual | clock.env) as server, TlsWire(server.address, alice) as held:
        held.create_stream("of alice")  # without a login
        for ahead_s in (CERTIFICATE_DAYS * DAY_S + HOUR_S, -2 * HOUR_S):
            clock.set(ahead_s)
            with pytest.raises(OSError), TlsWire(server.address, alice) as refused:
                refused.ping()
            assert held.status(wire.CREATE_STREAM, wire.str8("of alice")) == STREAM_EXISTS
            clock.set(0)
            with TlsWire(server.address, alice) as again:
                assert again.status(wire.CREATE_STREAM, wire.str8("of alice")) == STREAM_EXISTS
        clock.set(CERTIFICATE_DAYS * DAY_S + HOUR_S)
        os.kill(server.pid, signal.SIGHUP)
        wait_until(lambda: "the certificates stay as they were" in server.log(), "a sentence")
        clock.set(0)
        assert "certificates were read again" not in server.log()
        with TlsWire(server.address, alice) as again:
            again.ping()
        os.kill(server.pid, signal.SIGHUP)
        wait_until(lambda: "certificates were read again" in server.log(), "the certificates are taken")
        with TlsWire(server.address, alice) as again:
            again.ping()
    assert [path.read_bytes() for path in files] == content


def test_revoked_tokens_stay_revoked_after_a_jump(tmp_path: Path, clock: WallClock) -> None:
    with HttpServer(tmp_path / "data", clock.env) as server:
        revoked = server.root()
        assert revoked.get("/streams").status == 200
        revoked.done("DELETE", "/users/logout")
        assert revoked.get("/streams").status == 401
        clock.set(2 * HOUR_S)
        server.root().done("DELETE", "/users/logout")  # what has expired is forgotten with the next one
        clock.set(0)
        assert revoked.get("/streams").status == 401


def test_what_is_known_of_the_clock_is_written_down_without_the_cleaner(tmp_path: Path) -> None:
    server = Server(tmp_path / "data", WITHOUT_CLEANER)
    with server:
        until((server.data_dir / clock_memory.FILE_NAME).exists, server)
    known = clock_memory.recalled(server.data_dir)
    assert abs(known.believed_us - time.time_ns() // 1000) < HOUR_S * SECOND_US
    assert abs(known.stamps_us - known.believed_us) < SECOND_US  # the system sets its wall clock all the time


def faulty(tmp_path: Path, clock: WallClock) -> tuple[FaultControl, Server]:
    control = FaultControl(tmp_path)
    preloaded = {"LD_PRELOAD": f"{control.environment['LD_PRELOAD']}:{clock.env['LD_PRELOAD']}"}
    return control, Server(tmp_path / "data", WITHOUT_CLEANER | clock.env | control.environment | preloaded)


def test_the_looks_at_the_clock_go_on_while_a_write_of_what_is_known_hangs(tmp_path: Path, clock: WallClock) -> None:
    control, server = faulty(tmp_path, clock)
    with server:
        until((server.data_dir / clock_memory.FILE_NAME).exists, server)
        control.arm("write", clock_memory.FILE_NAME, 1, 0, for_ever=True, how=HANG)
        for ahead_s in (2 * HOUR_S, DAY_S):  # what begins a doubt is written down at once
            clock.set(ahead_s)
            until(lambda: f"the clock is {ahead_s} s ahead all at once" in server.log(), server)  # noqa: B023
        await_runs(server, "clock", 3)
        assert control.disarm()[1] == 1, "each write waits for the one that hangs"


def test_a_file_of_the_clock_that_cannot_be_written_ends_no_looks_and_is_tried_again(
    tmp_path: Path, clock: WallClock
) -> None:
    control, server = faulty(tmp_path, clock)
    control.arm("write", clock_memory.FILE_NAME, 1, errno.EIO, for_ever=True)
    with server:
        until(lambda: "what is known of the clock is not written down" in server.log(), server)
        await_runs(server, "clock", 3)
        assert control.disarm()[1] > 0
        assert not (server.data_dir / clock_memory.FILE_NAME).exists()
        clock.set(2 * HOUR_S)
        until((server.data_dir / clock_memory.FILE_NAME).exists, server)
        known = clock_memory.recalled(server.data_dir)
        assert known.believed_us < time.time_ns() // 1000 + HOUR_S * SECOND_US
