"""The supervisor's parts by themselves: address, directory, back-off, control channel, descriptors, log lines."""

from __future__ import annotations

import fcntl
import io
import json
import logging
import os
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from shardd.config.loader import load_settings
from shardd.log.directory_info import INFO_NAME
from shardd.log.layout import ARCHIVE
from shardd.metadata.log_file import FILE_NAME
from shardd.metadata.snapshot import SNAPSHOT_NAME
from shardd.observability.logs import set_up_logs
from shardd.runtime.control_messages import (
    LINE_BYTES_MAX,
    ControlError,
    MessageDecoder,
    Ready,
    SupervisorMessage,
    WorkerMessage,
    encode_message,
)
from shardd.runtime.inheritance import WorkerInheritance, read_inheritance, write_inheritance
from shardd.runtime.trust import PeerKey, TrustInheritance
from shardd.server.child_process import HEALTHY_AFTER_S, RESTARTS_MAX, Backoff
from shardd.server.data_directory import LOCK_NAME, lock_directory, prepare_directory
from shardd.server.errors import StartupError
from shardd.server.listeners import open_listeners, server_answers
from shardd.server.service_manager import Watchdog, notify_service_manager
from shardd.server.shared_resources import pool_share_bytes
from shardd.server.worker_template import child_environment

TCP = load_settings(None, {"SHARDD_TCP_ADDRESS": "127.0.0.1:0"}).settings.tcp


@contextmanager
def answering(answer: bytes) -> Iterator[int]:
    """Port of a listener that sends `answer` for whatever a connection sends first."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        stop_read, stop_write = os.pipe()

        def serve() -> None:
            while (ready := select.select([listener.fileno(), stop_read], [], [], 10.0)[0]) and stop_read not in ready:
                connection, _ = listener.accept()
                with connection:
                    connection.settimeout(1.0)
                    if connection.recv(8):
                        connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            os.write(stop_write, b"x")
            thread.join(15.0)
            os.close(stop_read)
            os.close(stop_write)


def test_a_server_that_answers_ping_is_noticed() -> None:
    with answering(bytes(8)) as port:
        assert server_answers("127.0.0.1", port)
        assert server_answers("0.0.0.0", port)


def test_another_service_is_no_server() -> None:
    with answering(b"HTTP/1.1") as port:
        assert not server_answers("127.0.0.1", port)


def test_a_socket_that_only_holds_the_port_is_no_server() -> None:
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        assert not server_answers("127.0.0.1", port)
        listeners, _ = open_listeners(load_settings(None, {"SHARDD_TCP_ADDRESS": f"127.0.0.1:{port}"}).settings.tcp, 2)
        for listener in listeners:
            assert listener.getsockname()[1] == port
            listener.close()
    assert not server_answers("127.0.0.1", port)  # nobody listens


def test_listeners_share_the_first_port_and_the_kernel_deals_connections() -> None:
    listeners, address = open_listeners(TCP, 2)
    host, _, port = address.rpartition(":")
    clients = [socket.create_connection((host, int(port)), timeout=5.0) for _ in range(64)]
    accepted = []
    for listener in listeners:
        listener.settimeout(0.2)
        while True:
            try:
                accepted.append((listener, listener.accept()[0]))
            except TimeoutError:
                break
    assert len(accepted) == 64
    assert {listener for listener, _ in accepted} == set(listeners)
    assert accepted[0][1].getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
    for end in (*clients, *listeners, *(connection for _, connection in accepted)):
        end.close()


def test_accepted_sockets_inherit_the_options() -> None:
    environment = {
        "SHARDD_TCP_ADDRESS": "127.0.0.1:0",
        "SHARDD_TCP_SOCKET_OVERRIDE_DEFAULTS": "true",
        "SHARDD_TCP_SOCKET_RECV_BUFFER_SIZE": "32 KiB",
        "SHARDD_TCP_SOCKET_SEND_BUFFER_SIZE": "64 KiB",
        "SHARDD_TCP_SOCKET_KEEPALIVE": "true",
        "SHARDD_TCP_SOCKET_NODELAY": "false",
        "SHARDD_TCP_SOCKET_LINGER": "3 s",
    }
    (listener,), _ = open_listeners(load_settings(None, environment).settings.tcp, 1)
    with listener, socket.create_connection(listener.getsockname(), timeout=5.0), listener.accept()[0] as accepted:
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 2 * (32 << 10)  # the kernel doubles it
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 2 * (64 << 10)
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 0
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8) == b"\1\0\0\0\3\0\0\0"


SO_BUF_LOCK: Final = 72  # which sizes of buffers were set: the kernel does not tune them any more


@pytest.mark.parametrize("overrides", [False, True])
def test_default_listeners_leave_the_size_of_buffers_to_the_kernel(overrides: bool) -> None:
    environment = {"SHARDD_TCP_ADDRESS": "127.0.0.1:0", "SHARDD_TCP_SOCKET_OVERRIDE_DEFAULTS": str(overrides).lower()}
    (listener,), _ = open_listeners(load_settings(None, environment).settings.tcp, 1)
    with listener, socket.create_connection(listener.getsockname(), timeout=5.0), listener.accept()[0] as accepted:
        for each in (listener, accepted):
            assert (each.getsockopt(socket.SOL_SOCKET, SO_BUF_LOCK) != 0) == overrides


def test_a_port_of_another_service_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        tcp = load_settings(None, {"SHARDD_TCP_ADDRESS": f"127.0.0.1:{other.getsockname()[1]}"}).settings.tcp
        with pytest.raises(StartupError, match="cannot listen on"):
            open_listeners(tcp, 2)


def test_a_directory_has_one_server(tmp_path: Path) -> None:
    fd = lock_directory(tmp_path / "data")
    inherited = os.dup(fd)
    os.close(fd)
    with pytest.raises(StartupError, match=f"process {os.getpid()}"):  # a worker that still lives holds it
        lock_directory(tmp_path / "data", wait_s=0.1)
    os.close(inherited)
    os.close(lock_directory(tmp_path / "data"))


def test_a_new_directory_gets_its_description(tmp_path: Path) -> None:
    prepare_directory(tmp_path, fresh=False)
    info = (tmp_path / INFO_NAME).read_text()
    assert json.loads(info).keys() == {"magic", "format_version", "created_at"}
    prepare_directory(tmp_path, fresh=False)
    assert (tmp_path / INFO_NAME).read_text() == info


@pytest.mark.parametrize(
    ("info", "sentence"),
    [
        ('{"magic": "other", "format_version": 1, "created_at": ""}', "no data directory of shardd"),
        ('{"magic": "shardd-data", "format_version": 3, "created_at": ""}', "format version 3 is unknown"),
        ('{"magic": "shardd-data", "format_version": 0, "created_at": ""}', "format version 0 is unknown"),
        ("{", "is damaged"),
    ],
)
def test_unknown_directories_are_refused(tmp_path: Path, info: str, sentence: str) -> None:
    (tmp_path / INFO_NAME).write_text(info)
    for fresh in (False, True):
        with pytest.raises(StartupError, match=sentence):
            prepare_directory(tmp_path, fresh)
    assert (tmp_path / INFO_NAME).read_text() == info


def test_the_check_of_a_directory_leaves_the_raise_of_its_version_to_the_metadata(tmp_path: Path) -> None:
    info = '{"magic": "shardd-data", "format_version": 1, "created_at": "then"}'
    (tmp_path / INFO_NAME).write_text(info)
    prepare_directory(tmp_path, fresh=False)
    assert (tmp_path / INFO_NAME).read_text() == info


def test_fresh_removes_our_data_and_nothing_else(tmp_path: Path) -> None:
    foreign, ours = tmp_path / "foreign", tmp_path / "ours"
    for directory in (foreign, ours):
        (directory / "streams").mkdir(parents=True)
        (directory / "streams" / "file").write_text("x")
        (directory / LOCK_NAME).write_text("")
    with pytest.raises(StartupError, match="nothing was removed"):
        prepare_directory(foreign, fresh=True)
    assert (foreign / "streams" / "file").exists()
    prepare_directory(ours, fresh=False)
    (ours / "link").symlink_to(foreign)
    prepare_directory(ours, fresh=True)
    made_anew = {LOCK_NAME, INFO_NAME, FILE_NAME, SNAPSHOT_NAME}
    assert {entry.name for entry in ours.iterdir()} == {*made_anew, ARCHIVE}
    assert (foreign / "streams" / "file").exists()


def test_backoff() -> None:
    backoff = Backoff()
    delays = [backoff.delay_s(0.0) for _ in range(RESTARTS_MAX + 1)]
    assert delays[:9] == [0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert delays[-2:] == [5.0, None]
    assert backoff.delay_s(HEALTHY_AFTER_S) == 0.0


def test_control_messages_survive_any_cut() -> None:
    messages = [
        WorkerMessage(heartbeat=7),
        WorkerMessage(ready=Ready(root_created=True, generation=3)),
        WorkerMessage(fatal="a sentence\nof two lines"),
    ]
    data = b"".join(map(encode_message, messages))
    assert data.startswith(b'{"heartbeat":7}\n')
    for cut in range(len(data) + 1):
        decoder = MessageDecoder(WorkerMessage)
        assert decoder.feed(data[:cut]) + decoder.feed(data[cut:]) == messages
    assert MessageDecoder(SupervisorMessage).feed(b'{"stop":8}\n') == [SupervisorMessage(stop=8.0)]


@pytest.mark.parametrize("data", [b"{}x\n", b'{"unknown":1}\n', b"\xff\n", b"x" * (LINE_BYTES_MAX + 1)])
def test_broken_control_messages(data: bytes) -> None:
    with pytest.raises(ControlError):
        MessageDecoder(WorkerMessage).feed(data)


def test_inheritance_travels_sealed() -> None:
    settings = load_settings(None, {}).settings
    sent = WorkerInheritance(
        shard=1, shards=2, cpus=[4, 6], settings=settings, address="127.0.0.1:1", control_fd=3, listener_fd=4,
        directory_lock_fd=5, shared_fd=6, pool_fds=[7, 8], pool_bytes=1 << 30, io_engine="epoll", doorbell_fds=[9, 10],
        handover_receive_fd=11, handover_send_fds=[12, 13], root_name="iggy",
        trust=TrustInheritance("shard-1", 1, 14, {"shard-0": 15}, [PeerKey("shard-0", 1, "k")]),
        root_password="secret", started_at_us=1, supervisor_pid=2, version="0", respawns=3,
    )  # fmt: skip
    fd = write_inheritance(sent)
    with pytest.raises(PermissionError):
        os.pwrite(fd, b"x", 0)
    assert fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    assert read_inheritance(fd, WorkerInheritance) == sent
    assert "'k'" not in repr(sent)
    assert sent.cpu == 6
    assert sorted(sent.descriptors()) == list(range(3, 16))
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_workers_get_no_password_from_the_environment() -> None:
    passwords = {"SHARDD_PASSWORD": "1", "IGGY_ROOT_PASSWORD": "2", "SHARDD_ROOT_PASSWORD": "3", "NOTIFY_SOCKET": "4"}
    assert child_environment(passwords | {"PATH": "/bin", "PYTHONPATH": "/x"}) == {"PATH": "/bin", "PYTHONPATH": "/x"}


def test_pools_are_shares_of_the_whole() -> None:
    assert pool_share_bytes(4 << 30, 3) == (4 << 30) // 3 // (1 << 20) * (1 << 20)
    with pytest.raises(StartupError, match="64 MiB at least"):
        pool_share_bytes(63 << 20, 2)


@pytest.mark.parametrize("abstract", [False, True])
def test_service_manager_is_told(abstract: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = f"@shardd-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + path[1:] if abstract else path)
        manager.settimeout(5.0)
        monkeypatch.setenv("NOTIFY_SOCKET", path)
        notify_service_manager("READY=1")
        assert manager.recv(64) == b"READY=1"
    notify_service_manager("STOPPING=1")  # nobody there any more: a warning, no failure


@pytest.mark.parametrize(
    ("environment", "messages"),
    [
        ({"WATCHDOG_USEC": "2000000"}, 3),
        ({"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": "7"}, 3),
        ({"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": "8"}, 0),  # meant for another process
        ({"WATCHDOG_USEC": "soon"}, 0),
        ({"WATCHDOG_USEC": "9" * 400}, 0),
        ({"WATCHDOG_USEC": "9" * 5_000}, 0),
        ({}, 0),
    ],
)
def test_watchdog_messages_come_twice_in_the_time_allowed(
    environment: dict[str, str], messages: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(path)
        manager.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", path)
        watchdog = Watchdog(environment, pid=7)
        for tenth in range(29):
            watchdog.look(100.0 + tenth / 10)
        for _ in range(messages):
            assert manager.recv(64) == b"WATCHDOG=1"
        with pytest.raises(BlockingIOError):
            manager.recv(64)


@pytest.fixture
def root_logger() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.usefixtures("root_logger")
def test_log_lines_for_people_cannot_be_forged() -> None:
    stream = io.StringIO()
    set_up_logs("shard-0", "info", "text", stream)
    logging.getLogger("shardd.test").warning("name %s", "a\n2026-01-01T00:00:00.000Z INFO supervisor ready")
    logging.getLogger("shardd.test").debug("not shown")
    lines = stream.getvalue().splitlines()
    assert len(lines) == 1
    timestamp, level, source, message = lines[0].split(" ", 3)
    assert len(timestamp) == 24 and timestamp.endswith("Z") and timestamp[10] == "T"
    assert (level, source) == ("WARN", "shard-0")
    assert message.startswith("name a\\n2026")


@pytest.mark.usefixtures("root_logger")
def test_log_lines_for_machines() -> None:
    stream = io.StringIO()
    set_up_logs("supervisor", "debug", "json", stream)
    try:
        raise ValueError("why")
    except ValueError:
        logging.getLogger("shardd.test").exception("what\nnow")
    line = json.loads(stream.getvalue())
    assert (line["level"], line["source"], line["logger"], line["message"]) == (
        "ERROR",
        "supervisor",
        "shardd.test",
        "what\nnow",
    )
    assert "ValueError: why" in line["traceback"]
