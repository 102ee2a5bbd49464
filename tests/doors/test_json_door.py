"""A door is a process of its own: its clients do everything that a connection can, and it may die at any time."""

from __future__ import annotations

import base64
import signal
import threading
import time
from functools import partial
from pathlib import Path
from typing import Final

import psutil
import pytest

from shardd.engine import owner
from shardd.protocol.namespaces import namespace
from tests.doors.door_kills import PAUSE_S, kill_under_load
from tests.doors.door_server import LOST, WAIT_S, DoorServer, JsonWire, StatusError
from tests.support import wire
from tests.support.serving import Serving

PARTITIONS = 8
LOADERS = 4
CONSUMER = {"kind": 1, "identifier": 7}
SERVER: Final = Serving(DoorServer)


def status_of(client: JsonWire, do: str, request: object = None, **more: object) -> int:
    try:
        client.ask(do, request, **more)
    except StatusError as error:
        return error.status
    return 0


def create_topic(client: JsonWire, stream: str, partitions: int = 2) -> None:
    client.ask("create_stream", {"name": stream})
    topic = {"stream": stream, "name": "t", "partitions_count": partitions, "compression": 1, "message_expiry_us": 0}
    client.ask("create_topic", {**topic, "max_topic_size_bytes": 0, "replication_factor": 1})


def test_a_client_without_a_login_may_do_nothing(server: DoorServer) -> None:
    with server.client() as client:
        for do in ("get_stats", "get_streams", "ping", "get_me"):
            assert status_of(client, do) == 40
        assert status_of(client, "login", username="iggy", password="wrong") == 42


def test_streams_and_topics_are_made_on_every_shard(server: DoorServer) -> None:
    clients = [server.root() for _ in range(4)]
    for number, client in enumerate(clients):
        create_topic(client, f"everywhere-{number}")
    assert {client.shard for client in clients} == {0, 1}
    for client in clients:
        names = {each["name"] for each in client.ask("get_streams")}
        assert {f"everywhere-{number}" for number in range(4)} <= names
        assert client.ask("get_topic", {"stream": "everywhere-0", "topic": "t"})["topic"]["partitions_count"] == 2
        client.close()


@pytest.mark.io_engine
def test_messages_are_sent_polled_and_committed_on_both_shards(server: DoorServer) -> None:
    clients = [server.root() for _ in range(2)]
    assert {client.shard for client in clients} == {0, 1}
    create_topic(clients[0], "messages", PARTITIONS)
    owners = {owner_of("messages", partition, clients[0]) for partition in range(PARTITIONS)}
    assert owners == {0, 1}, "not every shard has a partition"
    for number, client in enumerate(clients):
        for partition in range(PARTITIONS):
            send(client, "messages", partition, [b"%d-%d" % (number, each) for each in range(3)])
    for client in clients:
        for partition in range(PARTITIONS):
            found = client.ask("poll_messages", poll("messages", partition))
            assert payloads(found) == [b"%d-%d" % (number, each) for number in range(2) for each in range(3)]
            assert [each["offset"] for each in found] == [*range(6)]
    for partition in range(PARTITIONS):
        asked = {"consumer": CONSUMER, "stream": "messages", "topic": "t", "partition": partition}
        clients[0].ask("store_consumer_offset", {**asked, "offset": partition % 5})
        assert clients[1].ask("get_consumer_offset", asked)["stored_offset"] == partition % 5
        found = clients[1].ask("poll_messages", {**poll("messages", partition), "strategy": 5, "auto_commit": True})
        assert found[0]["offset"] == partition % 5 + 1
        assert clients[0].ask("get_consumer_offset", asked)["stored_offset"] == 5
        assert status_of(clients[0], "store_consumer_offset", {**asked, "offset": 6}) == 4100
    with wire.connect(server.address) as tcp:
        assert [each.payload for each in tcp.poll("messages", "t", 0).messages][:1] == [b"0-0"]
    for client in clients:
        client.close()


def owner_of(stream: str, partition: int, client: JsonWire) -> int:
    stream_id = client.ask("get_stream", {"stream": stream})["stream"]["id"]
    topic_id = client.ask("get_topic", {"stream": stream, "topic": "t"})["topic"]["id"]
    return owner(namespace(stream_id, topic_id, partition), 2)


def send(client: JsonWire, stream: str, partition: int, messages: list[bytes]) -> None:
    client.ask("send", sending(stream, partition, messages))


def sending(stream: str, partition: int, messages: list[bytes]) -> dict[str, object]:
    encoded = [base64.b64encode(each).decode() for each in messages]
    return {"stream": stream, "topic": "t", "partition": partition, "payloads": encoded}


def poll(stream: str, partition: int, offset: int = 0, count: int = 1000) -> dict[str, object]:
    where = {"consumer": CONSUMER, "stream": stream, "topic": "t", "partition": partition}
    return {**where, "strategy": 1, "value": offset, "count": count, "auto_commit": False}


def payloads(found: list[dict[str, str]]) -> list[bytes]:
    return [base64.b64decode(each["payload"]) for each in found]


def test_users_are_administered_and_the_log_names_who_did_it(server: DoorServer) -> None:
    with server.root() as root, server.client() as other:
        made = root.ask("create_user", {"username": "clerk", "password": "secret", "status": 1})
        assert made["username"] == "clerk"
        assert status_of(other, "login", username="clerk", password="secret") == 0
        assert status_of(other, "create_user", {"username": "third", "password": "secret", "status": 1}) == 41
        root.ask("update_permissions", {"user": "clerk", "permissions": {"manage_users": True, "manage_streams": True}})
        third = other.ask("create_user", {"username": "third", "password": "secret", "status": 1})
        line = f"user {made['id']} ('clerk') at {other.address} through door json: CreateUser name 'third' active True"
        assert f"{line} makes {third['id']}" in server.log()
        other.ask("change_password", {"user": "clerk", "current_password": "secret", "new_password": "better"})
        other.ask("update_user", {"user": "third", "username": "fourth"})
        assert other.ask("get_user", {"user": "fourth"})["id"] == third["id"]
        other.ask("delete_user", {"user": "fourth"})
        token = other.ask("create_personal_access_token", {"name": "key", "expiry_us": 0})["text"]
        with server.client() as third_client:
            assert third_client.ask("token", token=token) == made["id"]
            assert third_client.ask("get_me")["address"] == third_client.address
        assert [each["username"] for each in other.ask("get_users")] == ["iggy", "clerk"]
        assert token not in server.log()
        assert "secret" not in server.log()
        root.ask("delete_user", {"user": "clerk"})


def test_a_login_ends_with_its_user_and_its_logout(server: DoorServer) -> None:
    with server.root() as root, server.client() as client:
        for name in ("leaver", "next"):
            root.ask("create_user", {"username": name, "password": "secret", "status": 1})
        client.ask("login", username="leaver", password="secret")
        client.ask("get_me")
        client.ask("login", username="next", password="secret")
        client.ask("logout")
        assert status_of(client, "get_me") == 40
        client.ask("login", username="leaver", password="secret")
        root.ask("delete_user", {"user": "leaver"})
        assert status_of(client, "get_me") == 40
        root.ask("create_user", {"username": "leaver", "password": "secret", "status": 1})  # with the same id
        assert status_of(client, "get_me") == 40
        for name in ("leaver", "next"):
            root.ask("delete_user", {"user": name})


def test_wrong_requests_get_their_status(server: DoorServer) -> None:
    with server.root() as root:
        for do, request, status in (
            ("no_such_command", {}, 3),
            ("login_with_token", {}, 3),
            ("join_consumer_group", {"stream": 1, "topic": 1, "group": 1}, 5),
            ("get_stream", {"stream": -1}, 4),
            ("get_stream", {"stream": 2**32}, 4),
            ("get_stream", {"stream": "x" * 256}, 4),
            ("get_stream", {"stream": [1]}, 3),
            ("delete_stream", {}, 3),
            ("delete_stream", {"stream": "nowhere"}, 1009),
            ("create_user", {"username": "x", "password": "secret", "status": 1}, 43),
        ):
            assert status_of(root, do, request) == status, do
        root.ask("ping")


def test_every_command_of_doors_is_answered(server: DoorServer) -> None:
    """With values of every kind that services return."""
    with server.root() as root:
        create_topic(root, "all")
        topic = {"stream": "all", "topic": "t"}
        group = {**topic, "group": "g"}
        root.ask("create_consumer_group", {**topic, "name": "g"})
        offset = {"consumer": {"kind": 1, "identifier": 1}, **topic, "partition": 0}
        questions = [
            ("get_stats", None), ("get_clients", None), ("get_cluster_metadata", None), ("list_extensions", None),
            ("get_metrics", None), ("get_snapshot", {"compression": 2, "types": [4]}), ("get_users", None),
            ("get_personal_access_tokens", None), ("get_stream", {"stream": "all"}), ("get_topics", {"stream": "all"}),
            ("get_topic_settings", topic), ("get_consumer_group", group), ("get_consumer_groups", topic),
            ("get_consumer_offset", offset), ("get_partition_bounds", {"topics": [topic], "segments": True}),
            ("set_topic_settings", {**topic, "settings": [["ack", "written"]]}), ("get_client", {"client_id": 5}),
            ("create_partitions", {**topic, "count": 1}), ("delete_partitions", {**topic, "count": 1}),
            ("flush_unsaved_buffer", {**topic, "partition": 1, "fsync": True}), ("purge_topic", topic),
            ("delete_segments", {**topic, "partition": 0, "count": 1}), ("delete_consumer_group", group),
            ("delete_topic", topic), ("purge_stream", {"stream": "all"}),
            ("update_stream", {"stream": "all", "name": "other"}), ("delete_stream", {"stream": "other"}),
        ]  # fmt: skip
        for do, request in questions:
            root.ask(do, request)


def test_a_door_that_is_killed_comes_back_and_tcp_clients_notice_nothing(server: DoorServer) -> None:
    with wire.connect(server.address) as tcp, server.root() as lost:
        door = server.door()
        workers = server.worker_pids()
        door.kill()
        with pytest.raises(OSError):
            while True:
                lost.ask("ping")
        again = server.door(other_than=door.pid)
        tcp.ping()
        with server.root() as root:
            root.ask("ping")
        assert server.worker_pids() == workers
        assert again.pid != door.pid


@pytest.mark.io_engine
def test_doors_are_killed_under_load_and_nothing_acknowledged_is_lost(server: DoorServer) -> None:
    with server.root() as root:
        create_topic(root, "load", PARTITIONS)
    acknowledged = kill_under_load(server, LOADERS, partial(load, server))
    with wire.connect(server.address) as tcp:
        for number, expected in enumerate(acknowledged):
            stored, offset = set(), 0
            while found := tcp.poll("load", "t", number, value=offset, count=10_000).messages:
                stored |= {each.payload for each in found}
                offset = found[-1].offset + 1
            assert expected <= stored, f"{len(expected - stored)} acknowledged messages are lost"


def load(server: DoorServer, number: int, acknowledged: set[bytes], stop: threading.Event) -> None:
    """Sends to one partition until it is stopped, over as many doors as it takes."""
    count = 0
    while not stop.is_set():
        try:
            with server.root() as client:
                while not stop.is_set():
                    count += 1
                    send(client, "load", number, [b"%d-%d" % (number, count)])
                    acknowledged.add(b"%d-%d" % (number, count))
                    time.sleep(PAUSE_S)
        except OSError:
            time.sleep(0.02)  # the door is dead


def test_a_door_that_stands_still_is_replaced(server: DoorServer) -> None:
    door = server.door()
    door.send_signal(signal.SIGSTOP)
    server.door(other_than=door.pid)
    assert not psutil.pid_exists(door.pid) or door.status() == psutil.STATUS_ZOMBIE
    assert "door json" in server.log()
    with server.root() as root:
        root.ask("ping")


@pytest.mark.io_engine
def test_logins_end_with_their_worker_and_new_ones_are_made(server: DoorServer) -> None:
    clients = [server.root() for _ in range(2)]
    for shard in (0, 1):
        psutil.Process(server.worker_pids()[shard]).kill()
        for client in clients:
            login_again(client)
            client.ask("get_stats")
    with server.root() as root:
        assert status_of(root, "create_stream", {"name": f"after {time.monotonic_ns()}"}) == 0
    for client in clients:
        client.close()


def login_again(client: JsonWire) -> None:
    """A client of a dead worker hears 40 or that the worker is gone, never anything else."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        status = status_of(client, "get_stats")
        if status == 0:
            return
        assert status in (40, LOST), status
        assert status_of(client, "login", username="iggy", password="iggy") in (0, 8, LOST)
        time.sleep(0.05)
    raise TimeoutError


def test_a_server_that_stops_stops_its_doors(tmp_path: Path) -> None:
    with DoorServer(tmp_path / "data") as server:
        door = server.door()
        with server.root() as root:
            root.ask("create_stream", {"name": "s"})
            assert server.stop() == 0, server.log()
        assert not door.is_running()
        assert "Traceback" not in server.log(), server.log()


def test_a_door_never_outlives_its_supervisor(tmp_path: Path) -> None:
    with DoorServer(tmp_path / "data") as server:
        door = server.door()
        server.kill_supervisor()
        door.wait(WAIT_S)
