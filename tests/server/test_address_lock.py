"""The lock of an address: one server of a user has it, and no other user can keep him from it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardd.config.loader import load_settings
from shardd.server.address_lock import lock_address, lock_name, runtime_directories
from shardd.server.errors import StartupError
from shardd.server.listeners import open_listeners
from tests.support.other_user import STRANGER, as_stranger, needs_root
from tests.support.ports import free_port
from tests.support.server import Server

ADDRESS = "127.0.0.1:8090"


def make(directory: Path, mode: int = 0o700) -> Path:
    directory.mkdir()
    directory.chmod(mode)
    return directory


def taken(*directories: Path) -> bool:
    """Whether somebody has the lock."""
    try:
        lock_address(ADDRESS, directories).close()
    except StartupError as error:
        assert str(error) == f"another shardd server holds the address {ADDRESS}"
        return True
    return False


def test_an_address_has_one_supervisor(tmp_path: Path) -> None:
    ours = [make(tmp_path / "a"), tmp_path / "made when missing"]
    lock = lock_address(ADDRESS, ours)
    assert taken(*ours)
    assert taken(ours[1]), "the one that sees only a part of the directories"
    lock_address("127.0.0.1:8091", ours).close()
    lock.close()
    assert not taken(*ours)
    assert [list(directory.iterdir()) for directory in ours] == [[], []]
    assert [path.stat().st_mode & 0o777 for path in ours] == [0o700, 0o700]


def test_a_killed_server_leaves_no_lock(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from shardd.server.address_lock import lock_address\n"
        f"lock = lock_address({ADDRESS!r}, [Path(sys.argv[1])]); print('held', flush=True); time.sleep(60)"
    )
    directory = make(tmp_path / "a")
    with subprocess.Popen([sys.executable, "-c", program, str(directory)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        assert taken(directory)
        holder.kill()
        holder.wait()
        assert not taken(directory)


def test_another_network_has_addresses_of_its_own(tmp_path: Path) -> None:
    apart = ["unshare", "--map-root-user", "--net"]
    if subprocess.run([*apart, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no network of its own can be made here")
    program = (
        "import sys; from pathlib import Path; from shardd.server.address_lock import lock_address\n"
        "print(lock_address(sys.argv[2], [Path(sys.argv[1])]).held)"
    )
    directory = make(tmp_path / "a")
    held = [lock_address(ADDRESS, [directory]), lock_address("unix-1", [directory])]
    there = [
        subprocess.run(
            [*apart, sys.executable, "-c", program, str(directory), address],
            check=False,
            capture_output=True,
            text=True,
        )
        for address in (ADDRESS, "unix-1")
    ]
    assert there[0].stdout == "True\n"
    assert "another shardd server holds the address unix-1" in there[1].stderr
    for lock in held:
        lock.close()


@needs_root
def test_a_directory_of_another_user_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    foreign, ours = make(tmp_path / "foreign"), make(tmp_path / "ours")
    os.chown(foreign, STRANGER, STRANGER)
    lock = lock_address(ADDRESS, [foreign, ours])
    assert taken(foreign, ours)
    assert not list(foreign.iterdir())
    lock.close()
    lock = lock_address(ADDRESS, [foreign])  # no lock at all: the server starts all the same
    assert not lock.held
    assert "a second server is only found when it answers" in caplog.text
    lock.close()


def test_what_others_may_change_or_redirect_is_not_used(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("kept")
    open_to_all = make(tmp_path / "open", 0o777)
    link = tmp_path / "link"
    link.symlink_to(make(tmp_path / "elsewhere"))
    planted = make(tmp_path / "planted")
    (planted / lock_name(ADDRESS)).symlink_to(victim)
    file = tmp_path / "file"
    file.write_text("")
    for unusable in (open_to_all, link, planted, file, tmp_path / "missing" / "below"):
        lock = lock_address(ADDRESS, [unusable])
        assert not lock.held, unusable
    assert victim.read_text() == "kept"
    assert not list((tmp_path / "elsewhere").iterdir())


def test_the_directories_are_of_the_user_alone() -> None:
    assert runtime_directories(0) == [Path("/run/shardd"), Path("/tmp/shardd-0")]
    assert runtime_directories(1000) == [Path("/run/user/1000/shardd"), Path("/tmp/shardd-1000")]


@contextlib.contextmanager
def nobody_does(program: str) -> Iterator[None]:
    """While a program of another user runs; it says when it is ready."""
    command = as_stranger("socket, sys", program)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None and other.stdout.readline() == "ready\n"
            yield
        finally:
            other.kill()


@needs_root
def test_no_other_user_prevents_a_start_by_taking_the_address_lock(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    program = f"""
lock = socket.socket(socket.AF_UNIX)
lock.bind("\\0shardd-{address}")
print("ready", flush=True)
sys.stdin.read()
"""
    with nobody_does(program), Server(tmp_path / "data", {"SHARDD_TCP_ADDRESS": address}) as server:
        assert server.address == address
        second = Server(tmp_path / "second", {"SHARDD_TCP_ADDRESS": address})
        second.spawn()
        assert second.wait() == 1
        assert f"another shardd server holds the address {address}" in second.log()
        assert server.stop() == 0


@needs_root
def test_the_kernel_keeps_an_address_for_one_user() -> None:
    port = free_port()
    program = f"""
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
listener.bind(("127.0.0.1", {port}))
listener.listen()
print("ready", flush=True)
sys.stdin.read()
"""
    with nobody_does(program), pytest.raises(StartupError, match="cannot listen on"):
        open_listeners(load_settings(None, {"SHARDD_TCP_ADDRESS": f"127.0.0.1:{port}"}).settings.tcp, 1)
