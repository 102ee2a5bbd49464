"""The supervisor: owns what must outlive a worker, spawns, watches and replaces workers. No data path.

Start order: directory lock, address lock, PING at the address, listeners, shared objects, workers, doors. It is a plain
loop over a selector: signals, control channels and pidfds of workers and doors, and a tick for deadlines.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from shardd.config.keys import settings_toml
from shardd.config.schema import Settings
from shardd.runtime.channel import CONTROL_SHARD
from shardd.runtime.control_messages import PeerUp, Ready, SupervisorMessage, newest_lines
from shardd.runtime.disk_errors import NO_ROOM
from shardd.runtime.recent_logs import recent_lines
from shardd.server.addresses import actual_addresses, other_ways_in
from shardd.server.child_process import ProcessState
from shardd.server.data_directory import remove_runtime_config, write_runtime_config
from shardd.server.door_listeners import DoorListeners
from shardd.server.doors import DoorKeeper, DoorProcess, DoorSpecification, describe_status
from shardd.server.drain import Drain
from shardd.server.first_user import FirstUser
from shardd.server.service_manager import Watchdog, notify_service_manager
from shardd.server.settings_reload import read_again
from shardd.server.shared_resources import SharedResources
from shardd.server.signal_socket import holds_any_of, wakeup_socket
from shardd.server.stall_board import StallBoard
from shardd.server.standstill import WorkerSample
from shardd.server.thread_samples import sample_worker
from shardd.server.tls_files import TlsKeeper
from shardd.server.worker_inheritances import WorkerInheritances
from shardd.server.worker_process import WorkerProcess
from shardd.server.worker_template import WorkerTemplate

if TYPE_CHECKING:
    from shardd.engine.io_choice import IoEngine  # needs the built engine; its absence is told in a sentence

STOP_WORKERS_S: Final = 8.0  # what workers are told
STOP_KILL_S: Final = 9.0  # then they are killed
FIRST_START_DEATHS_MAX: Final = 3  # of one shard, or processes that could not be made, before all were ready once
_TICK_S: Final = 0.1
_CONFIG_RETRY_S: Final = 2.0  # of the runtime configuration on a full disk
_PAUSE_S: Final = 1.0  # a tick so late means that the supervisor did not run
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_STOPPING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # the last one only from a terminal
_log = logging.getLogger(__name__)


class Supervisor:
    """Runs the workers of one server until a signal ends it. Lives in the supervisor process, main thread."""

    def __init__(
        self,
        settings: Settings,
        cpus: list[int],
        resources: SharedResources,
        first_user: FirstUser,
        version: str,
        engine: IoEngine,
        *,
        first_start: bool,
        memory_nodes: list[int],
        doors: Sequence[DoorSpecification] = (),
        door_listeners: DoorListeners,
        access_keys: list[bytes],
        tls: TlsKeeper,
        tls_of_doors: TlsKeeper,
        read_settings: Callable[[], Settings],
        template: WorkerTemplate | None = None,
    ) -> None:
        self._settings, self._read_settings = settings, read_settings
        self._cpus = cpus
        self._resources = resources
        self._root = first_user.user
        self._version = version
        self._show_password = first_start and self._root.generated
        # memory of the template may be on any node, and that of a worker is bound to its own
        self._template = None if memory_nodes else template
        if self._template is not None and access_keys:
            self._template.sign_tokens()
        self._workers = [WorkerProcess(shard, self._template) for shard in range(len(cpus))]
        self._selector = selectors.DefaultSelector()
        self._doors = DoorKeeper(
            doors, resources.introductions, self._selector, len(cpus), settings.system.logging, version,
            door_listeners, tls_of_doors.fd,
        )  # fmt: skip
        self._door_addresses = door_listeners.actual
        self._inheritances = WorkerInheritances(
            cpus, resources, first_user, version, engine.name, memory_nodes, tls, door_listeners.actual, access_keys
        )
        self._engine = engine
        self._tls = tls
        self._tls_of_doors = tls_of_doors
        self._hangup_stops = os.isatty(0)  # started from a terminal, which ends
        self._stalls = StallBoard(self._workers, settings.system.watchdog, self._sample, self._doors.tell_stalls)
        self._all_ready = False
        self._config_due_at = float("inf")  # a full disk has refused the runtime configuration
        self._drain = Drain(self._workers)
        self._stop_at: float | None = None  # when stragglers get killed
        self._exit_status = 0
        self._is_to_end: Callable[[], bool] = lambda: False

    def run(self) -> int:
        """0: stopped in order; 1: a worker had to be killed, or the server could not start."""
        with contextlib.ExitStack() as end:
            try:
                wakeup = end.enter_context(wakeup_socket(_SIGNALS))
            except OSError as error:  # no descriptor is left
                _log.error("the server cannot start: %s", error.strerror)
                return 1
            self._selector.register(wakeup, selectors.EVENT_READ, None)
            self._is_to_end = lambda: holds_any_of(wakeup, _STOPPING if self._hangup_stops else _STOPPING[:-1])
            if self._template is not None:
                self._template.interrupted_by(self._is_to_end)
            self._doors.start_first()
            for worker in self._workers:
                self._spawn(worker)
            last, watchdog = time.monotonic(), Watchdog(os.environ, os.getpid())
            while self._stop_at is None or self._doors.any_running or any(each.running for each in self._workers):
                self._turn(wakeup)
                now = time.monotonic()
                self._check_deadlines(now, now - last)
                if self._all_ready:  # the manager listens from then on
                    watchdog.look(now)
                last = now
        remove_runtime_config(self._settings.system.runtime_directory)
        _log.info("stopped")
        return self._exit_status

    def _turn(self, wakeup: socket.socket) -> None:
        for key, _ in self._selector.select(_TICK_S):
            if key.fileobj is wakeup:
                for number in wakeup.recv(64):
                    self._on_signal(number)
                continue
            if isinstance(key.data, DoorProcess):
                for shard, door_key in self._doors.on_event(key.data, key.fd):
                    self._workers[shard].send(SupervisorMessage(door_key=door_key))
                continue
            worker: WorkerProcess = key.data
            if worker.running and key.fd == worker.pidfd:
                self._on_death(worker)
            elif worker.control is not None and key.fileobj is worker.control:
                self._on_control(worker)

    # ---- workers ----

    def _spawn(self, worker: WorkerProcess) -> None:
        if self._is_to_end():
            return
        try:
            worker.spawn(self._inheritances.of(worker.shard, self._settings))
        except InterruptedError:  # by the signal that this loop comes to next
            return
        except OSError as error:  # no process, memory or descriptor: as if it had died at once
            _log.error("cannot start a worker for shard %d: %s", worker.shard, error)
            worker.restart_at = time.monotonic() + 1.0
            worker.failed_spawns += 1
            if not self._all_ready and worker.failed_spawns >= FIRST_START_DEATHS_MAX:
                self._cannot_start("")
            return
        assert worker.control is not None
        self._selector.register(worker.control, selectors.EVENT_READ, worker)
        self._selector.register(worker.pidfd, selectors.EVENT_READ, worker)
        for peer in self._workers:
            if peer is not worker and self._all_ready and not peer.running:
                worker.send(SupervisorMessage(peer_down=peer.shard))
        self._drain.tell(worker)
        _log.debug("started process %d for shard %d", worker.pid, worker.shard)

    def _on_control(self, worker: WorkerProcess) -> None:
        for message in worker.receive():
            self._drain.heard(worker, message)
            if message.fatal is not None:
                worker.fatal = message.fatal
            elif message.ready is not None:
                self._on_ready(worker, message.ready)
            elif message.logs:
                worker.send(SupervisorMessage(logs=newest_lines(recent_lines())))
        if worker.control is not None and worker.control_ended:  # else the selector would report its end for ever
            self._selector.unregister(worker.control)
            worker.close_control()

    def _on_ready(self, worker: WorkerProcess, ready: Ready) -> None:
        worker.mark_ready()
        if (worker.shard == CONTROL_SHARD and self._show_password) or (ready.root_created and self._root.generated):
            self._show_password = False
            # for whoever starts the server, and known nowhere else: not a log line
            sys.stdout.write(f"Generated root user password: {self._root.password}\n")
            sys.stdout.flush()
        for peer in self._workers:
            if peer is not worker:
                peer.send(SupervisorMessage(peer_up=PeerUp(worker.shard, ready.generation)))
        self._doors.worker_ready(worker.shard, ready.generation)
        if self._all_ready:
            worker.send(SupervisorMessage(all_ready=True))
            if self._template is not None:
                self._template.start()  # who can make workers die learns nothing of how the next one lies in memory
            _log.info("shard %d is back (process %d)", worker.shard, worker.pid)
        elif all(each.state is ProcessState.READY for each in self._workers):
            self._on_all_ready()

    def _on_all_ready(self) -> None:
        self._all_ready = True
        for worker in self._workers:
            worker.send(SupervisorMessage(all_ready=True))
        address = self._resources.address
        _log.info(
            "shardd %s, %d %s on CPU %s, engine %s, ack %s, data %s, tcp %s%s, ready",
            self._version,
            len(self._cpus),
            "shard" if len(self._cpus) == 1 else "shards",
            ",".join(map(str, self._cpus)),
            self._engine,
            self._settings.system.partition.ack,
            self._settings.system.data_directory,
            address,
            other_ways_in(self._resources, self._settings.unix.path, self._door_addresses),
        )
        # after the line: who waited for the file finds it in the log
        if not self._write_runtime_config():
            self._exit_status = 1
            self._stop()
            return
        notify_service_manager("READY=1")
        self._doors.start()

    def _on_death(self, worker: WorkerProcess) -> None:
        self._on_control(worker)  # its last words
        self._selector.unregister(worker.pidfd)
        if worker.control is not None:
            self._selector.unregister(worker.control)
        pid = worker.pid
        status = worker.reap()
        self._stalls.ended(worker, time.monotonic())
        if self._stop_at is not None:
            if status != 0:
                self._exit_status = 1
                _log.error("shard %d (process %d) ended with %s", worker.shard, pid, describe_status(status))
            return
        why = f": {worker.fatal}" if worker.fatal else ""
        _log.error("shard %d (process %d) ended with %s%s", worker.shard, pid, describe_status(status), why)
        self._resources.introductions.ended(worker.shard)
        for peer in self._workers:
            if peer is not worker:
                peer.send(SupervisorMessage(peer_key=self._resources.introductions.key(worker.shard, peer.shard)))
                peer.send(SupervisorMessage(peer_down=worker.shard))
        self._doors.worker_died(worker.shard)
        if not self._all_ready:
            if worker.fatal or worker.backoff.unhealthy_deaths >= FIRST_START_DEATHS_MAX:
                self._cannot_start(why)
        elif worker.fatal or worker.state is ProcessState.GIVEN_UP:
            self._give_up(worker)

    def _cannot_start(self, why: str) -> None:
        _log.error("the server cannot start%s", why)
        self._exit_status = 1
        self._stop()

    def _give_up(self, worker: WorkerProcess) -> None:
        worker.state = ProcessState.GIVEN_UP
        self._resources.close_listener(worker.shard)
        _log.error("shard %d is given up; the others go on without its partitions", worker.shard)
        if all(each.state is ProcessState.GIVEN_UP for each in self._workers):
            self._exit_status = 1
            self._stop()

    # ---- time and signals ----

    def _sample(self, worker: WorkerProcess, everything: bool) -> WorkerSample | None:
        return sample_worker(worker.pid, self._resources.shared_fd, worker.shard, everything=everything)

    def _check_deadlines(self, now: float, since_last_s: float) -> None:
        self._stalls.look(now)
        self._tls.look(time.time())
        self._tls_of_doors.look(time.time())
        if self._stop_at is not None:
            if self._stalls.any_excused(now):
                self._stop_at += since_last_s  # what has been acknowledged can still reach the device
            if now > self._stop_at:
                self._kill_all()
                self._stop_at = float("inf")
            return
        if self._drain.over:
            _log.info("all clients have gone: stopping")
            self._stop()
            return
        if now >= self._config_due_at:
            self._write_runtime_config()
        self._doors.look(now, since_last_s if since_last_s > _PAUSE_S else 0.0)
        for worker in self._workers:
            if since_last_s > _PAUSE_S:
                worker.forgive(since_last_s)
            if worker.hangs(now):
                _log.error("shard %d (process %d) gives no sign of life; it is replaced", worker.shard, worker.pid)
                worker.kill()
                worker.forgive(10.0)  # its death arrives through the pidfd; until then one line is enough
            if worker.state is ProcessState.DOWN and now >= worker.restart_at and self._stop_at is None:
                self._spawn(worker)

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGUSR1 or (number == signal.SIGHUP and not self._hangup_stops):
            if self._stop_at is None:
                self._reload_tls()
                self._reload_settings()
        elif number == signal.SIGUSR2 and self._all_ready:
            self._begin_drain()
        elif self._stop_at is None:
            _log.info("stopping")
            self._stop()
        else:
            _log.warning("second signal: workers are killed")
            self._kill_all()

    def _begin_drain(self) -> None:
        """Clients on TCP, WebSocket and the Unix socket stay; a door ends with its requests."""
        if self._drain.begun or self._stop_at is not None:
            return
        _log.info("no more clients are taken; the server stops when those that are here have gone")
        self._close_listeners()
        self._doors.stop()
        self._drain.begin()

    def _close_listeners(self) -> None:
        self._resources.close_unix_listener()
        for worker in self._workers:
            self._resources.close_listener(worker.shard)

    def _reload_tls(self) -> None:
        if self._tls.fd >= 0 and self._tls.reload():
            for worker in self._workers:
                worker.send(SupervisorMessage(tls=True))
        if self._tls_of_doors.fd >= 0 and self._tls_of_doors.reload():
            self._doors.tls_changed()

    def _reload_settings(self) -> None:
        before = self._settings
        self._settings = read_again(before, self._read_settings, self._workers, self._doors)
        if self._all_ready and self._settings is not before:
            self._write_runtime_config()

    def _write_runtime_config(self) -> bool:
        """False: what waits for that file would wait for ever. A full disk gets it as soon as there is room."""
        addresses = actual_addresses(self._resources, self._door_addresses)
        system, text = self._settings.system, settings_toml(self._settings, addresses)
        try:
            write_runtime_config(system.runtime_directory, system.data_directory, text)
        except OSError as error:
            if self._config_due_at == float("inf"):  # one line for all attempts
                _log.error("cannot write the runtime configuration: %s", error)
            self._config_due_at = time.monotonic() + _CONFIG_RETRY_S
            return error.errno in NO_ROOM
        self._config_due_at = float("inf")
        return True

    def _stop(self) -> None:
        self._stop_at = time.monotonic() + STOP_KILL_S
        notify_service_manager("STOPPING=1")
        self._doors.stop()
        self._close_listeners()
        for worker in self._workers:
            worker.send(SupervisorMessage(stop=STOP_WORKERS_S))

    def _kill_all(self) -> None:
        for worker in self._workers:
            if worker.running:
                _log.error("shard %d (process %d) is killed", worker.shard, worker.pid)
                self._exit_status = 1
                worker.kill()
        if self._doors.kill_all():
            self._exit_status = 1
