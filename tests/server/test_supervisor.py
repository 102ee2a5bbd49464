"""A real server as its supervisor runs it: readiness, replacement of workers, refusals, orderly end."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.conftest import MakeServer
from tests.support.server import ONE_SHARD, Server

PING = bytes.fromhex("0400000001000000")
WAIT_S = 60.0


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = WAIT_S) -> float:
    """Seconds until it held."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < timeout_s, f"not within {timeout_s} s: {what}"
        time.sleep(0.005)
    return time.monotonic() - began


def answers_ping(server: Server, timeout_s: float = WAIT_S) -> bool:
    try:
        with socket.create_connection(server.endpoint, timeout=timeout_s) as connection:
            connection.sendall(PING)
            return connection.recv(8) == bytes(8)
    except OSError:
        return False


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def read_only_command(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SHARDD_", "IGGY_"))}
    return subprocess.run(
        [sys.executable, "-m", "shardd", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment | (env or {}),
    )


def log_from_now(server: Server) -> Callable[[], str]:
    """What the server says from now on."""
    said = len(server.log())
    return lambda: server.log()[said:]


@pytest.mark.io_engine
def test_a_ready_server(server: Server) -> None:
    workers = server.worker_pids()
    assert psutil.Process(server.pid).cmdline()[0].startswith("shardd: supervisor")
    cpus = sorted(os.sched_getaffinity(0))[: len(workers)]
    for shard, pid in enumerate(workers):
        process = psutil.Process(pid)
        assert " ".join(process.cmdline()).startswith(f"shardd: shard {shard}")
        assert process.cpu_affinity() == [cpus[shard]]
    line = next(line for line in server.log().splitlines() if line.endswith(", ready"))
    for part in ("INFO supervisor shardd ", ", engine ", str(server.data_dir), f"tcp {server.address}"):
        assert part in line
    assert answers_ping(server)
    info = json.loads((server.data_dir / "info.json").read_text())
    assert (info["magic"], info["format_version"]) == ("shardd-data", 2)


def test_sigterm_ends_in_order(make_server: MakeServer) -> None:
    server = make_server()
    workers = server.worker_pids()
    assert server.stop() == 0
    assert not any(map(is_running, workers))
    assert not server.runtime_config.exists()
    assert server.log().rstrip().endswith("stopped")


def test_ctrl_c_reaches_the_workers_through_the_supervisor(make_server: MakeServer) -> None:
    server = make_server(env=ONE_SHARD)
    assert all(os.getpgid(pid) != os.getpgid(server.pid) for pid in server.worker_pids())
    os.kill(server.pid, signal.SIGINT)
    assert server.wait() == 0


def test_workers_ignore_signals_for_the_whole_group(server: Server) -> None:
    workers = server.worker_pids()
    for pid in workers:
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGINT)
    time.sleep(0.5)
    assert server.worker_pids() == workers
    assert answers_ping(server)


@pytest.mark.parametrize("shard", [0, -1])
def test_a_killed_worker_is_back(server: Server, shard: int) -> None:
    before, log = server.worker_pids(), log_from_now(server)
    number = shard % len(before)
    os.kill(before[shard], signal.SIGKILL)
    wait_until(lambda: f"shard {number} is back" in log(), "the shard is back")
    after = server.worker_pids()
    assert [old == new for old, new in zip(before, after, strict=True)].count(False) == 1
    assert all(answers_ping(server) for _ in range(16))


@pytest.mark.io_engine
def test_connections_wait_for_the_new_worker(make_server: MakeServer) -> None:
    """With one shard every connection is its own: what arrives while it is away is served when it is back."""
    server = make_server(env=ONE_SHARD)
    (pid,) = server.worker_pids()
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_running(pid), "the worker is gone")
    assert answers_ping(server, timeout_s=WAIT_S)


def test_a_stopped_worker_is_replaced(server: Server) -> None:
    victim, log = server.worker_pids()[-1], log_from_now(server)
    os.kill(victim, signal.SIGSTOP)
    took_s = wait_until(lambda: "is back" in log(), "the shard is back")
    assert "gives no sign of life" in log()
    assert took_s > 1.5
    assert not is_running(victim)
    assert answers_ping(server)


def test_no_worker_outlives_its_supervisor(make_server: MakeServer) -> None:
    server = make_server()
    workers = server.worker_pids()
    server.kill_supervisor()
    wait_until(lambda: not any(map(is_running, workers)), "all workers are gone")
    server.start()  # the lock of the directory and of the address went with them
    assert answers_ping(server)


def test_a_stopped_supervisor_does_not_take_its_workers_for_dead(server: Server) -> None:
    before = server.worker_pids()
    os.kill(server.pid, signal.SIGSTOP)
    time.sleep(3.0)
    os.kill(server.pid, signal.SIGCONT)
    time.sleep(0.5)
    assert server.worker_pids() == before


def test_one_server_for_a_directory(server: Server) -> None:
    second = read_only_command("serve", "--data", str(server.data_dir), env={"SHARDD_TCP_ADDRESS": "127.0.0.1:0"})
    assert second.returncode == 1
    assert f"is in use by another server (process {server.pid})" in second.stderr
    assert answers_ping(server)


def test_one_server_for_an_address(server: Server, tmp_path: Path) -> None:
    environment = {"SHARDD_TCP_ADDRESS": server.address}
    second = read_only_command("serve", "--data", str(tmp_path / "other"), env=environment)
    assert second.returncode == 1
    assert f"another shardd server holds the address {server.address}" in second.stderr
    wildcard = {"SHARDD_TCP_ADDRESS": f"0.0.0.0:{server.endpoint[1]}"}
    third = read_only_command("serve", "--data", str(tmp_path / "other"), env=wildcard)
    assert third.returncode == 1
    assert "a server answers at" in third.stderr


def test_a_harness_that_holds_the_port_does_not_stop_the_start(make_server: MakeServer) -> None:
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        server = make_server(
            env=ONE_SHARD | {"IGGY_TCP_ADDRESS": f"127.0.0.1:{holder.getsockname()[1]}", "SHARDD_TCP_ADDRESS": ""}
        )
        assert server.endpoint == holder.getsockname()
    assert answers_ping(server)


def test_all_problems_of_a_configuration_end_with_status_2(tmp_path: Path) -> None:
    environment = {"SHARDD_TCP_ADRESS": "x", "SHARDD_SYSTEM_SEGMENT_SIZE": "1", "IGGY_ROOT_USERNAME": "admin"}
    answer = read_only_command("serve", "--data", str(tmp_path / "data"), env=environment)
    assert answer.returncode == 2
    assert len(answer.stderr.splitlines()) == 3
    for part in ("SHARDD_TCP_ADDRESS", "system.segment.size", "both or neither"):
        assert part in answer.stderr
    assert not (tmp_path / "data").exists()


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """As somebody runs it who comes from Iggy, with a password in the environment."""
    variables = {"IGGY_QUIC_SEND_WINDOW": "100 KB", "IGGY_SYSTEM_STATE_ENFORCE_FSYNC": "true"}
    variables |= {"SHARDD_ROOT_USERNAME": "admin", "SHARDD_ROOT_PASSWORD": "topsecret"}
    with Server(tmp_path_factory.mktemp("deployed") / "data", ONE_SHARD | variables, arguments=()) as running:
        yield running


def test_variables_of_an_iggy_deployment_give_one_warning(deployed: Server) -> None:
    warnings = [line for line in deployed.log().splitlines() if " WARN supervisor " in line]
    assert len(warnings) == 1
    assert "IGGY_QUIC_SEND_WINDOW, IGGY_SYSTEM_STATE_ENFORCE_FSYNC" in warnings[0]


def test_config_show_masks_secrets() -> None:
    environment = {
        "SHARDD_ROOT_USERNAME": "admin",
        "SHARDD_ROOT_PASSWORD": "topsecret",
        "IGGY_SYSTEM_ENCRYPTION_KEY": "othersecret",
        "IGGY_TCP_ADDRESS": "127.0.0.1:7",
    }
    answer = read_only_command("config", "show", env=environment)
    assert answer.returncode == 0
    assert "secret" not in answer.stdout
    assert re.search(r"tcp.address +\"127.0.0.1:7\" +IGGY_TCP_ADDRESS", answer.stdout)
    assert re.search(r"IGGY_SYSTEM_ENCRYPTION_KEY .* not served", answer.stdout)
    assert re.search(r"system.segment.size +\"1 GiB\" +default", answer.stdout)


def test_version() -> None:
    assert re.fullmatch(r"shardd \d+\.\d+\.\d+\n", read_only_command("--version").stdout)


def test_a_generated_password_is_shown_once(make_server: MakeServer) -> None:
    server = make_server(env=ONE_SHARD, arguments=())
    (password,) = re.findall(r"^Generated root user password: (\w+)$", server.log(), re.MULTILINE)
    assert 20 <= len(password) <= 39
    os.kill(server.worker_pids()[0], signal.SIGKILL)
    wait_until(lambda: "shard 0 is back" in server.log(), "the shard is back")
    assert server.stop() == 0
    server.start()
    assert server.log().count("Generated root user password") == 1


def test_passwords_are_not_visible_in_the_process_list(deployed: Server) -> None:
    for pid in deployed.worker_pids():
        process = psutil.Process(pid)
        assert "topsecret" not in " ".join(process.cmdline()) + str(process.environ())


def test_dev_mode_leaves_nothing_behind(make_server: MakeServer) -> None:
    server = make_server(env=ONE_SHARD, arguments=("--dev",), start=False)
    process = server.spawn()
    wait_until(lambda: ", ready" in server.log(), "ready")
    match = re.search(r"data (\S+), tcp", server.log())
    assert match is not None
    directory = Path(match[1])
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    process.send_signal(signal.SIGTERM)
    assert server.wait() == 0
    assert not directory.exists()


def test_fresh_starts_from_nothing(make_server: MakeServer) -> None:
    server = make_server(env=ONE_SHARD)
    server.stop()
    (server.data_dir / "streams" / "leftover").mkdir(parents=True)
    fresh = Server(server.data_dir, ONE_SHARD, arguments=("--fresh", "--with-default-root-credentials"))
    with fresh:
        assert not (fresh.data_dir / "streams" / "leftover").exists()
        assert answers_ping(fresh)


def test_the_service_manager_hears_of_it(make_server: MakeServer, tmp_path: Path) -> None:
    heard: list[bytes] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(WAIT_S)
        listener = threading.Thread(target=lambda: heard.extend(manager.recv(64) for _ in range(2)))
        listener.start()
        server = make_server(env=ONE_SHARD | {"NOTIFY_SOCKET": str(tmp_path / "notify")})
        server.stop()
        listener.join(WAIT_S)
    assert heard == [b"READY=1", b"STOPPING=1"]


def test_lines_for_machines(make_server: MakeServer) -> None:
    settings = {"SHARDD_SYSTEM_LOGGING_FORMAT": "json", "SHARDD_SYSTEM_LOGGING_LEVEL": "debug"}
    server = make_server(env=ONE_SHARD | settings)
    server.stop()
    sources = {json.loads(line)["source"] for line in server.log().splitlines()}
    assert "supervisor" in sources


def test_a_refused_metadata_log_ends_the_start_with_its_sentence(make_server: MakeServer) -> None:
    server = make_server(env=ONE_SHARD)
    server.stop()
    (server.data_dir / "state.messages").write_bytes(b"no metadata log at all")
    server.spawn()
    assert server.wait() == 1
    assert "the server cannot start: " in server.log()
    assert "Traceback" not in server.log()
