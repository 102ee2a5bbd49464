"""The workers of one server inside the test process: real engines, services, metadata and log; only the supervisor is
the test itself. Each worker has its own thread and loop; the test talks to them over TCP (`tests.support.wire`).
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import threading
import time
from collections.abc import Coroutine, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import pytest

from shardd.config.loader import load_settings
from shardd.config.schema import Settings
from shardd.dispatch.dialects import Dialects
from shardd.dispatch.door.endpoint import Doors
from shardd.engine.io_choice import choose_io_engine
from shardd.engine.loop import new_event_loop
from shardd.metadata.commands import CreateUser, Ref
from shardd.metadata.state import Permissions
from shardd.runtime.control_messages import MessageDecoder, PeerUp, SupervisorMessage, WorkerMessage, encode_message
from shardd.runtime.inheritance import WorkerInheritance
from shardd.server.address_lock import AddressLock
from shardd.server.shared_resources import SharedResources, make_resources
from shardd.service.services import Services
from shardd.worker.worker import Worker
from tests.support.server import IO_ENGINE_VARIABLE
from tests.support.wire import Wire

READY_TIMEOUT_S = 30
STOP_S = 5.0
POOL_BYTES = 64 << 20
Value = TypeVar("Value")


class Inside:
    """What a worker has inside; only to be used on its loop."""

    def __init__(self, worker: Worker, settings: Settings) -> None:
        self.engine: Any = worker.engine
        self.metadata = worker._metadata
        self.bus = worker._bus
        self.settings = settings
        self.sessions = worker._sessions
        self.passwords = worker._passwords
        self.login_turns = worker._login_turns
        self.services: Services = worker._services


class WorkerThread:
    """One worker with its loop in a thread and the supervisor's end of its control channel."""

    def __init__(self, inheritance: WorkerInheritance, control: socket.socket) -> None:
        self._inheritance = inheritance
        self._control = control
        self._thread = threading.Thread(target=self._run, name=f"shard-{inheritance.shard}", daemon=True)
        self._thread.start()

    @property
    def context(self) -> Inside:
        return Inside(self._worker, self._inheritance.settings)

    def call(self, coroutine: Coroutine[Any, Any, Value]) -> Value:
        """Runs a coroutine on the worker's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(READY_TIMEOUT_S)

    def passwords_waiting(self) -> int:
        return self._worker._login_turns.figures()["jobs_waiting"]

    def tell_of(self, peer: WorkerThread) -> None:
        """It serves."""
        up = PeerUp(peer._inheritance.shard, peer.context.engine.generation)
        self._control.sendall(encode_message(SupervisorMessage(peer_up=up)))

    def wait_ready(self) -> None:
        decoder = MessageDecoder(WorkerMessage)
        deadline = time.monotonic() + READY_TIMEOUT_S
        while (left_s := deadline - time.monotonic()) > 0:
            self._control.settimeout(left_s)
            messages = decoder.feed(self._control.recv(65536))
            if any(message.ready is not None for message in messages):
                return
        raise TimeoutError("the worker is not ready")

    def stop(self) -> None:
        self._control.sendall(encode_message(SupervisorMessage(stop=STOP_S)))

    def join(self) -> None:
        self._thread.join(2 * STOP_S + 5)
        self._control.close()
        assert not self._thread.is_alive(), "the worker does not stop"

    def _run(self) -> None:
        """The engine is made where it is used: its ring takes calls of one thread only."""
        self._worker = Worker(self._inheritance, Dialects, Doors)
        self._loop = new_event_loop(self._worker.engine, self._worker.deliver, self._worker.watch)
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._worker.main())
        finally:
            self._loop.close()
            self._worker.engine.close()


class Workers:
    """All workers of one server; a context manager. `connect(shard)` gives a connection to one of them, which stays
    there unless the settings let connections move."""

    def __init__(
        self, data: Path, shards: int = 1, segment_size: str = "1 GiB", settings: Mapping[str, str] | None = None
    ) -> None:
        settings = {"tcp.socket_migration": "false", **(settings or {})}
        values = {"system.path": str(data), "system.segment.size": segment_size, **settings}
        self._settings = load_settings(None, {}, values).settings
        self._data = data
        self._shards = shards
        self._threads: list[WorkerThread] = []
        self._wires: list[Wire] = []

    def __enter__(self) -> Self:
        self._data.mkdir(parents=True, exist_ok=True)
        listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(self._shards)]
        for listener in listeners:  # as the server does: an answer in several parts would wait for the client's ACK
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.addresses = [f"127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]
        self._resources = make_resources(
            shards=self._shards,
            pool_bytes=POOL_BYTES,
            directory_lock_fd=os.open(self._data, os.O_RDONLY),
            address=self.addresses[0],
            address_lock=AddressLock(),
            listeners=listeners,
            data_directory=self._data,
        )
        self._threads = [self._spawn(shard, self._resources) for shard in range(self._shards)]
        for thread in self._threads:
            thread.wait_ready()
        for thread, peer in itertools.permutations(self._threads, 2):
            thread.tell_of(peer)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for wire in self._wires:
            wire.close()
        for thread in self._threads:
            thread.stop()
        for thread in self._threads:
            thread.join()
        self._resources.close()

    def _spawn(self, shard: int, resources: SharedResources) -> WorkerThread:
        ours, theirs = socket.socketpair()
        listener = resources.listeners[shard]
        assert listener is not None
        inheritance = WorkerInheritance(
            shard=shard,
            shards=self._shards,
            cpus=[0] * self._shards,
            settings=self._settings,
            address=self.addresses[shard],
            control_fd=theirs.detach(),
            listener_fd=listener.fileno(),
            directory_lock_fd=resources.directory_lock_fd,
            shared_fd=resources.shared_fd,
            pool_fds=resources.pool_fds,
            pool_bytes=POOL_BYTES,
            io_engine=choose_io_engine(os.environ.get(IO_ENGINE_VARIABLE, "auto")).name,
            doorbell_fds=resources.doorbell_fds,
            handover_receive_fd=resources.handover_receive[shard].fileno(),
            handover_send_fds=[end.fileno() for end in resources.handover_send],
            trust=resources.introductions.inheritance(shard),
            root_name="iggy",
            root_password="iggy",
            started_at_us=time.time_ns() // 1000,
            supervisor_pid=os.getpid(),
            version="test",
            respawns=0,
        )
        return WorkerThread(inheritance, ours)

    def passwords_waiting(self, shard: int = 0) -> int:
        """Logins that wait for the thread of the passwords."""
        return self._threads[shard].passwords_waiting()

    def anonymous(self, shard: int = 0, source: str = "") -> Wire:
        """A connection without a login, from `source`."""
        wire = Wire(self.addresses[shard], source=source)
        self._wires.append(wire)
        return wire

    def connect(self, shard: int = 0, name: str = "iggy", password: str = "iggy") -> Wire:
        wire = self.anonymous(shard)
        wire.login(name, password)
        return wire

    def context(self, shard: int = 0) -> Inside:
        """The inside of a worker; only to be used through `call`."""
        return self._threads[shard].context

    def call(self, coroutine: Coroutine[Any, Any, Value], shard: int = 0) -> Value:
        return self._threads[shard].call(coroutine)

    def root_ref(self) -> Ref:
        """Who may submit anything."""
        return Ref(0, self.context().metadata.state.users[0].incarnation)

    def create_user(self, name: str, permissions: Permissions | None = None, *, active: bool = True) -> int:
        """A user with the password "secret"."""
        context = self.context()
        password_hash = self.call(context.passwords.hash("secret"))
        result = self.call(
            context.metadata.submit(self.root_ref(), CreateUser(name, password_hash, active, permissions))
        )
        assert result.status == 0
        return int(result.id)


@pytest.fixture
def moving(tmp_path: Path) -> Iterator[Workers]:
    """Two whose connections move. A new one stays where it comes in when the other has as many."""
    with Workers(tmp_path / "data", shards=2, settings={"tcp.socket_migration": "true"}) as running:
        yield running
