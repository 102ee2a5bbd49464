"""Workers are forked from a process that has imported what they need (docs/adr/0094-workers-are-forked.md)."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import psutil
import pytest

from shardd.cli import template as child
from shardd.server.worker_template import WorkerTemplate
from tests.support import wire
from tests.support.memory import memory_holds
from tests.support.server import TWO_SHARDS, Server, children_of
from tests.support.serving import Serving

TITLE = "shardd: template"
HTTP_ANYWHERE = {"SHARDD_HTTP_ADDRESS": "127.0.0.1:0"}
SECRET = "a password that nobody else has 7361"


def template_of(server: Server, but: int = 0, within_s: float = 30.0) -> psutil.Process:
    """The template of a server, another one than the process `but`."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        for each in children_of(server.pid):
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile
                if each.pid != but and "".join(each.cmdline()).startswith(TITLE):
                    return each
        time.sleep(0.02)
    raise AssertionError("there is no template")


def wait_for_token_library(process: psutil.Process, within_s: float = 30.0) -> None:
    """Until the process has imported what signs tokens."""
    deadline = time.monotonic() + within_s
    while not has_token_library(process.pid):
        assert time.monotonic() < deadline, f"process {process.pid} has not imported it"
        time.sleep(0.02)


def has_token_library(pid: int) -> bool:
    return "/cryptography/" in Path(f"/proc/{pid}/maps").read_text()


def kill_and_wait(server: Server, shard: int) -> None:
    before = server.worker_pids()[shard]
    os.kill(before, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while server.running_workers().get(shard, before) == before:
        assert time.monotonic() < deadline, server.log()
        time.sleep(0.01)


def sends(server: Server) -> None:
    """Both shards serve."""
    deadline = time.monotonic() + 60
    while True:
        try:
            with wire.connect(server.address) as connection:
                for partition in range(8):
                    connection.send(0, 0, wire.to_partition(partition), [wire.message(b"x")])
                return
        except (OSError, wire.StatusError):
            assert time.monotonic() < deadline, server.log()
            time.sleep(0.05)


def fill(server: Server) -> None:
    with wire.connect(server.address) as connection:
        connection.create_topic(connection.create_stream("s"), "t", 8)


SERVER: Final = Serving(env=TWO_SHARDS, fill=fill)


def test_template_of_a_server_that_signs_tokens_imports_for_all_workers_what_that_takes(tmp_path: Path) -> None:
    with Server(tmp_path / "data", env=TWO_SHARDS | {"SHARDD_HTTP_ENABLED": "true"} | HTTP_ANYWHERE) as server:
        first = template_of(server)
        wait_for_token_library(first)
        kill_and_wait(server, 1)
        wait_for_token_library(template_of(server, but=first.pid))


def test_template_of_a_server_without_tokens_does_not_import_for_them(own_server: Server) -> None:
    assert not has_token_library(template_of(own_server).pid)


def test_a_killed_worker_is_forked_from_a_template_that_is_new_then(own_server: Server) -> None:
    supervisor, first = own_server.pid, template_of(own_server)
    assert {psutil.Process(pid).ppid() for pid in own_server.worker_pids()} == {supervisor}
    kill_and_wait(own_server, 1)
    sends(own_server)
    assert template_of(own_server, but=first.pid).ppid() == supervisor
    assert not first.is_running() or first.status() == psutil.STATUS_ZOMBIE
    assert psutil.Process(own_server.worker_pids()[1]).ppid() == supervisor


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_without_a_template_that_answers_a_worker_comes_back_all_the_same(
    own_server: Server, number: signal.Signals
) -> None:
    first = template_of(own_server)
    first.send_signal(number)
    kill_and_wait(own_server, 0)
    sends(own_server)
    kill_and_wait(own_server, 1)  # by the template that has come meanwhile, or from nothing
    sends(own_server)
    assert template_of(own_server, but=first.pid)


def test_sigterm_beside_a_stopped_template_stops_in_order(own_server: Server) -> None:
    template_of(own_server).send_signal(signal.SIGSTOP)
    assert own_server.stop() == 0
    assert own_server.log().rstrip().endswith("stopped") and "is killed" not in own_server.log()


def test_sigterm_while_a_stopped_template_is_asked_starts_no_worker(tmp_path: Path) -> None:
    with Server(tmp_path / "data", env=TWO_SHARDS | {"SHARDD_SYSTEM_LOGGING_LEVEL": "debug"}) as server:
        template_of(server).send_signal(signal.SIGSTOP)
        killed = server.worker_pids()[1]
        os.kill(killed, signal.SIGKILL)
        wait_for_text(server, f"shard 1 (process {killed}) ended with")  # the next step asks for its successor
        started = server.log().count("for shard 1")
        assert server.stop() == 0
        assert server.log().count("for shard 1") == started, server.log()
        assert "is killed" not in server.log()


def test_a_template_that_is_stopped_is_given_up_for_a_signal_that_ends_the_server() -> None:
    template = WorkerTemplate()
    reads, writes = socket.socketpair()
    try:
        template.interrupted_by(lambda: bool(select.select([reads], [], [], 0)[0]))
        assert template._process is not None
        os.kill(template._process.pid, signal.SIGSTOP)
        writes.send(bytes([signal.SIGTERM]))
        with pytest.raises(InterruptedError):
            template.fork(reads.fileno(), [], wait=True)
        assert template.fork(reads.fileno(), [], wait=True) is None  # it has none any more
    finally:
        template.close()
        reads.close()
        writes.close()


def wait_for_text(server: Server, text: str) -> None:
    deadline = time.monotonic() + 60
    while not server.log_path.exists() or text not in server.log():
        assert time.monotonic() < deadline, server.log()
        time.sleep(0.01)


def test_a_template_holds_no_secret(tmp_path: Path) -> None:
    env = TWO_SHARDS | {"SHARDD_ROOT_USERNAME": "admin", "SHARDD_ROOT_PASSWORD": SECRET}
    with Server(tmp_path / "data", env=env, arguments=()) as server:
        template = template_of(server)
        assert not [name for name in template.environ() if name.startswith(("SHARDD_", "IGGY_"))]
        assert not memory_holds(template.pid, SECRET.encode())
        assert memory_holds(server.pid, SECRET.encode())  # the search finds what is there
        assert len(list(Path(f"/proc/{template.pid}/fd").iterdir())) <= 5  # standard ones and its channel


def test_it_ends_with_the_server(own_server: Server) -> None:
    template = template_of(own_server)
    own_server.kill_supervisor()
    template.wait(30)


def test_a_server_that_refuses_its_settings_leaves_none_behind(tmp_path: Path) -> None:
    server = Server(tmp_path / "data", env={"SHARDD_TCP_ADDRESS": "nowhere"})
    process = server.spawn()
    assert process.wait(60) == 2
    assert not [each for each in psutil.process_iter() if each.ppid() == process.pid]


def test_descriptors_of_many_shards_come_in_several_requests() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pairs = [os.pipe() for _ in range(225)]
    sent = [end for pair in pairs for end in pair]
    asking = WorkerTemplate.__new__(WorkerTemplate)
    asking._socket = ours
    ours.setblocking(False)
    try:
        asking._ask(sent)
        request = next(child._requests(theirs))
        assert request.numbers == sent and len(request.received) == len(sent)
        assert request.umask == os.umask(request.umask)
        for own, received in zip(sent, request.received, strict=True):
            assert os.fstat(own).st_ino == os.fstat(received).st_ino
            os.close(received)
    finally:
        for descriptor in sent:
            os.close(descriptor)
        ours.close()
        theirs.close()


def test_each_descriptor_gets_its_number_whatever_stands_there() -> None:
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            files = [os.memfd_create(f"file-{number}") for number in range(6)]
            wanted = [files[3], files[0], 90, files[1], 91, writes]  # numbers of others among them
            received = [*files[:5], writes]
            names = [Path(f"/proc/self/fd/{each}").readlink() for each in received]
            child._place(received, wanted)
            placed = [Path(f"/proc/self/fd/{each}").readlink() for each in wanted]
            left = {int(each.name) for each in Path("/proc/self/fd").iterdir()} - {0, 1, 2, *wanted}
            os.write(writes, b"right" if placed == names and len(left) <= 1 else f"{placed} {left}".encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writes)
    try:
        assert os.read(reads, 4096) == b"right"
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        os.close(reads)


def test_a_fork_whose_supervisor_has_died_ends_at_once() -> None:
    nobody = os.fork()
    if nobody == 0:
        os._exit(0)
    os.waitpid(nobody, 0)
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:  # its parent is neither the supervisor nor the one that it was forked by
        child._become_a_worker(theirs, child._Request((64, 64), 0o77, [3], [3]), nobody, nobody)
    ours.close()
    theirs.close()
    deadline = time.monotonic() + 30
    while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert os.waitstatus_to_exitcode(ended[1]) == 1


def test_template_whose_supervisor_has_refused_its_start_says_nothing() -> None:
    own, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    own.close()
    words = [sys.executable, "-m", "shardd.cli.template", str(theirs.fileno()), str(os.getpid())]
    done = subprocess.run(words, pass_fds=[theirs.fileno()], capture_output=True, timeout=60, check=False)
    theirs.close()
    assert (done.returncode, done.stderr) == (0, b"")
