"""What a real server lets the door for Liftbridge do, and no other door: its commands, tasks in nobody's name, logins
by a setting, and notices of changed metadata. It survives kills of workers and of the server."""

from __future__ import annotations

import base64
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from shardd.protocol.door_frames import Kind, LoginBySetting, Purpose, Task
from shardd.protocol.liftbridge.requests import ActivityOp
from shardd.protocol.send_request import NewMessage, Partitioning, PartitioningKind, SendMessages
from tests.doors.door_server import WAIT_S, DoorServer, JsonWire, StatusError
from tests.doors.test_captured_door import EMPTY
from tests.support import wire

SETTINGS: Final = {"SHARDD_LIFTBRIDGE_ANONYMOUS_USER": "guest", "SHARDD_LIFTBRIDGE_NATS_USER": "asleep"}
DOORS: Final = ("liftbridge", "relay")
UNAUTHORIZED: Final = 41


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DoorServer]:
    with DoorServer(tmp_path_factory.mktemp("liftbridge") / "data", SETTINGS, DOORS) as running:
        with connect(running) as door:
            door.ask("task:prepare")
        yield running
        assert "Traceback" not in running.log(), running.log()


def connect(server: DoorServer) -> JsonWire:
    return JsonWire(server.ports["liftbridge"])


@pytest.fixture
def root(server: DoorServer) -> Iterator[JsonWire]:
    with connect(server) as client:
        client.ask("login", username="iggy", password="iggy")
        yield client


def refused(client: JsonWire, do: str, request: object = None, **more: object) -> int:
    with pytest.raises(StatusError) as caught:
        client.ask(do, request, **more)
    return caught.value.status


def make(root: JsonWire, name: str, partitions: int = 2) -> dict[str, Any]:
    fields = {"name": name, "subject": f"in.{name}", "group": "", "partitions": partitions, "settings": {"minIsr": 1}}
    root.ask("liftbridge_create_stream", fields)
    return found(root, name)


def found(client: JsonWire, name: str) -> dict[str, Any]:
    [stream] = client.ask("liftbridge_list_streams", {"names": [name]})
    return dict(stream)


def batch(*values: bytes) -> dict[str, Any]:
    made = SendMessages.of(1, 1, Partitioning(PartitioningKind.PARTITION, 0), [NewMessage(value) for value in values])
    return {"count": made.count, "batch": base64.b64encode(made.batch).decode()}


def publish(client: JsonWire, stream: dict[str, Any], *values: bytes, **more: object) -> Any:
    place = {field: stream[field] for field in ("stream_id", "topic_id", "incarnation")}
    return client.ask("liftbridge_publish", {**place, "partition": 0, **batch(*values), **more})


def test_a_client_makes_publishes_and_reads_a_stream(root: JsonWire) -> None:
    stream = make(root, "orders")
    assert (stream["subject"], stream["settings"], stream["partitions"]) == ("in.orders", {"minIsr": 1}, 2)
    assert publish(root, stream, b"one", b"two")["base_offset"] == 0
    assert publish(root, stream, b"three", expected_offset=2, fsync=True)["base_offset"] == 2
    asked = {
        "consumer": {"kind": 1, "identifier": 1},
        "stream": stream["stream_id"],
        "topic": stream["topic_id"],
        "partition": 0,
        "strategy": 1,
        "value": 0,
        "count": 10,
        "auto_commit": False,
    }
    messages = root.ask("poll_messages", asked)
    assert [base64.b64decode(each["payload"]) for each in messages] == [b"one", b"two", b"three"]
    root.ask("liftbridge_set_readonly", {"name": "orders", "partitions": [0], "readonly": True})
    with pytest.raises(StatusError, match="4010"):
        publish(root, stream, b"x")
    root.ask("liftbridge_delete_stream", {"name": "orders"})
    assert root.ask("liftbridge_list_streams", {"names": ["orders"]}) == []


def test_groups_share_out_what_there_is(root: JsonWire) -> None:
    make(root, "shared", 5)
    for consumer in ("b", "a"):
        fields = {"group": "g", "consumer": consumer, "streams": ["shared"]}
        joined = root.ask("liftbridge_join_group", fields)
    [group] = root.ask("liftbridge_get_groups", {"names": ["g", "none"]})
    assert group["epoch"] == joined["epoch"] > 0
    assert {name: member["assigned"] for name, member in group["members"].items()} == {
        "a": {"shared": [0, 2, 4]},
        "b": {"shared": [1, 3]},
    }
    assert refused(root, "liftbridge_leave_group", {"group": "g", "consumer": "c"}) == 5006
    root.ask("task:expire_member", {"group": "g", "consumer": "a", "epoch": group["epoch"]})
    root.ask("liftbridge_leave_group", {"group": "g", "consumer": "b"})
    assert root.ask("liftbridge_get_groups", {"names": ["g"]}) == []
    newest = [event[1] for event in root.ask("task:events", {"after_index": group["epoch"]})]
    assert newest == [ActivityOp.LEAVE_CONSUMER_GROUP] * 2


def test_requests_that_are_none_are_refused_and_close_nothing(root: JsonWire) -> None:
    for name in ("create_stream", "pause_stream", "publish", "join_group", "get_groups", "set_readonly"):
        assert refused(root, f"liftbridge_{name}", {"name": 7, "names": 3}) == 3
    assert refused(root, "task:publish", {"name": []}) == 3
    assert refused(root, "task:nothing") == UNAUTHORIZED
    long = {"name": "x", "subject": "s" * 20_000, "group": "", "partitions": 1}
    assert refused(root, "liftbridge_create_stream", long) == 3
    wide = {"name": "x" * 600, "subject": "s", "group": "", "partitions": 1}
    assert refused(root, "liftbridge_create_stream", wide) == 4
    root.ask("ping")


def test_no_other_door_may_any_of_it(server: DoorServer) -> None:
    with server.relay(0) as relay:
        relay.proven()
        client = relay.open()
        for name in ("prepare", "all_streams", "publish", "poll", "events", "expire_member", "nothing"):
            assert relay.ask(Kind.TASK, Task(name, EMPTY))[0] == UNAUTHORIZED
        for purpose in Purpose:
            assert relay.ask(Kind.LOGIN_BY_SETTING, LoginBySetting(client, purpose))[0] == UNAUTHORIZED
        handle = relay.login(client)
        for name in ("liftbridge_list_streams", "liftbridge_publish", "liftbridge_get_groups"):
            assert relay.command(handle, name) == UNAUTHORIZED
        assert relay.command(handle, "ping") == 0


def test_a_login_by_a_setting_is_the_user_of_the_setting_and_nobody_else(server: DoorServer, root: JsonWire) -> None:
    with connect(server) as guest:
        assert refused(guest, "by_setting", username="anonymous") == 42
        root.ask("create_user", {"username": "guest", "password": "secret", "status": 1, "permissions": None})
        root.ask("create_user", {"username": "asleep", "password": "secret", "status": 2, "permissions": None})
        assert guest.ask("by_setting", username="anonymous") > 0
        assert refused(guest, "get_users") == UNAUTHORIZED
        assert guest.ask("liftbridge_list_streams", {"names": []}) == []
        assert refused(guest, "by_setting", username="nats") == 47
        guest.ask("ping")


def test_the_door_hears_of_every_change_and_not_of_each(server: DoorServer, root: JsonWire) -> None:
    with connect(server) as listener, wire.connect(server.address) as tcp:
        before, count = listener.ask("noticed", {"after": 0})
        began = time.monotonic()
        for number in range(100):
            tcp.create_topic("liftbridge-default", f"heard-{number}", 1)
        seconds = time.monotonic() - began
        newest, told = listener.ask("noticed", {"after": before + 99})
        assert newest == before + 100
        assert told - count <= 2 * (seconds / 0.05 + 2), "from each of two workers 20 in a second"
    assert found(root, "heard-99")["subject"] == "heard-99"


def test_everything_survives_kills(tmp_path: Path) -> None:
    """Of a worker, then of the whole server: streams, marks, groups, id and events are as they were."""
    with DoorServer(tmp_path / "data", SETTINGS, DOORS) as server:

        def everything() -> object:
            with connect(server) as client:
                client.ask("login", username="iggy", password="iggy")
                return [
                    client.ask("task:prepare"),
                    client.ask("task:all_streams"),
                    client.ask("task:all_groups"),
                    client.ask("task:events", {"after_index": 0}),
                    client.ask("liftbridge_get_groups", {"names": ["g"]}),
                ]

        with connect(server) as root:
            root.ask("task:prepare")
            root.ask("login", username="iggy", password="iggy")
            stream = make(root, "kept", 4)
            publish(root, stream, b"before", fsync=True)
            root.ask("liftbridge_set_readonly", {"name": "kept", "partitions": [0], "readonly": True})
            root.ask("liftbridge_pause_stream", {"name": "kept", "partitions": [1, 3], "resume_all": True})
            root.ask("liftbridge_join_group", {"group": "g", "consumer": "m", "streams": ["kept"]})
        before = everything()
        os.kill(server.worker_pids()[1], signal.SIGKILL)
        assert until_same(everything, before)
        server.kill_supervisor()
        server.start()
        assert until_same(everything, before)
        with connect(server) as root:
            root.ask("login", username="iggy", password="iggy")
            with pytest.raises(StatusError, match="4010"):
                publish(root, stream, b"x")


def until_same(ask: Any, expected: object) -> bool:
    """Workers may be away for a while."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        try:
            if ask() == expected:
                return True
        except (StatusError, OSError):
            pass
        time.sleep(0.05)
    return False
