"""Calls over gRPC that wait for one of few places in a line of the door: one user fills the line, another one is served
long before the line is empty."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import grpc
import pytest

from shardd.doors.liftbridge.calls import CALLS_OF_ADDRESS_MAX
from shardd.protocol.liftbridge import api, api_messages
from shardd.protocol.permissions import Permissions
from tests.doors.liftbridge_server import ROOT, WAIT_S, LiftbridgeClient, LiftbridgeServer
from tests.support import wire
from tests.support.serving import Serving
from tests.support.stalls import figures_of, metrics, stopped

STREAMS: Final = 40
PARTITIONS: Final = 10
CALLS: Final = 400
assert CALLS < CALLS_OF_ADDRESS_MAX, "all of them have a place among calls, and wait in the line"
ASKED: Final = 200  # by the other user: some of them come behind the crowd, however slow its calls come in
STUCK: Final = ("stuck 0", "stuck 1", "stuck 2", "stuck 3")
LEFT_MIN: Final = CALLS // 4
QUESTIONS: Final[dict[str, dict[str, Any]]] = {"FetchMetadata": {}, "FetchPartitionMetadata": {"stream": "s0"}}
EVERYTHING: Final = Permissions(manage_streams=True, send_messages=True, poll_messages=True)


def fill(server: LiftbridgeServer) -> None:
    with server.client(ROOT) as root:
        for number in range(STREAMS):
            root.create(f"s{number}", PARTITIONS)
    with wire.connect(server.address) as tcp:  # the door has not seen it come: it looks for its time
        tcp.send("liftbridge-default", "s0", wire.to_partition(0), [wire.message(b"x")])
    for name in ("many", "one"):
        server.create_user(name, EVERYTHING)


SERVER: Final = Serving(LiftbridgeServer, fill=fill)


class Crowd:
    """Calls of one user that are all made at once. `left`: those that have no answer yet."""

    def __init__(self, clients: list[LiftbridgeClient], method: str, fields: dict[str, Any]) -> None:
        request = api_messages.message_class(api.request_of(method))(**fields).SerializeToString()
        self.left = CALLS
        self.begun = threading.Event()  # one of them has its answer: the others are at the door, or on the way
        self._changes = threading.Lock()
        self.calls = []
        for number in range(CALLS):
            client = clients[number % len(clients)]
            asked = client.channel.unary_unary(f"/{api.SERVICE}/{method}")
            self.calls.append(asked.future(request, timeout=WAIT_S, metadata=client.metadata, wait_for_ready=True))
        for call in self.calls:
            call.add_done_callback(self._ended)

    def _ended(self, _: object) -> None:
        with self._changes:
            self.left -= 1
        self.begun.set()


@pytest.mark.parametrize("method", QUESTIONS)
def test_calls_of_one_user_leave_lines_of_the_door_to_others(server: LiftbridgeServer, method: str) -> None:
    """Counted, not measured: how many of the crowd are behind the other user."""
    fields = QUESTIONS[method]
    with ExitStack() as held, server.logged_in("one") as one:
        assert one.status(method, **fields) == ("OK", "")
        clients = [held.enter_context(server.logged_in("many")) for _ in range(4)]
        for client in clients:
            client.call(method, **fields)
        door = server.door()
        door.suspend()  # until all have been sent: however slow this client is, they are there together
        try:
            crowd = Crowd(clients, method, fields)
        finally:
            door.resume()
        assert crowd.begun.wait(WAIT_S)
        assert one.status(method, **fields) == ("OK", "")
        assert crowd.left >= LEFT_MIN, f"{crowd.left} of {CALLS} are left"
        assert all(call.code() is grpc.StatusCode.OK for call in crowd.calls if call.done())
        for call in crowd.calls:
            call.cancel()


def clients_of(server: LiftbridgeServer) -> list[int]:
    """Of doors, at each worker."""
    with wire.connect(server.address) as root:
        return [each["doors.clients"] for each in figures_of(metrics(root))]


def worker_of(server: LiftbridgeServer, client: LiftbridgeClient, method: str, fields: dict[str, Any]) -> int:
    """At which the client is logged in by its first call."""
    before = clients_of(server)
    assert client.status(method, **fields) == ("OK", "")
    [worker] = [worker for worker, count in enumerate(clients_of(server)) if count > before[worker]]
    return worker


def test_calls_at_a_worker_that_does_not_answer_leave_places_to_others(tmp_path: Path) -> None:
    """All calls of one user are at a worker that is stopped. Another user is at the other worker."""
    method, fields = "FetchMetadata", QUESTIONS["FetchMetadata"]
    with LiftbridgeServer(tmp_path / "data") as server, ExitStack() as held:
        for name in ("one", *STUCK):
            server.create_user(name, EVERYTHING)
        with server.client(ROOT) as root:
            root.create("s0", PARTITIONS)
        one = held.enter_context(server.logged_in("one"))
        home = worker_of(server, one, method, fields)
        for name in STUCK:
            client = held.enter_context(server.logged_in(name))
            worker = worker_of(server, client, method, fields)
            if worker != home:
                break
        assert worker != home, "the door has its clients at all workers, in turns"
        with stopped(server, server.worker_pids()[worker]):
            crowd = Crowd([client], method, fields)
            for _ in range(ASKED):
                assert one.status(method, **fields) == ("OK", "")
            assert crowd.left == CALLS
            for call in crowd.calls:
                call.cancel()
