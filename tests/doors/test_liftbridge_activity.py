"""The activity stream and automatic pause of Liftbridge on a real server."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from shardd.protocol.liftbridge import api_messages
from tests.doors.liftbridge_server import LiftbridgeClient, LiftbridgeServer
from tests.support import wire

CREATE, DELETE, PAUSE, RESUME, READONLY, JOIN, LEAVE = range(7)


def events(client: LiftbridgeClient, count: int) -> list[Any]:
    kind = api_messages.ActivityStreamEvent
    return [kind.FromString(each.value) for each in client.read("__activity", count)]


def test_every_change_is_an_event_once_in_its_order_also_when_the_door_is_killed(tmp_path: Path) -> None:
    settings = {
        "SHARDD_LIFTBRIDGE_ACTIVITY": "true",
        "SHARDD_LIFTBRIDGE_GROUP_CONSUMER_TIMEOUT": "1 s",
    }
    with LiftbridgeServer(tmp_path / "data", settings) as server:
        with server.client() as client:
            client.create("s", 2)
            client.call("PauseStream", name="s", resumeAll=True)
            client.publish("s", b"x")
            client.call("SetStreamReadonly", name="s", partitions=[1], readonly=True)
            client.call("JoinConsumerGroup", groupId="g", consumerId="c", streams=["s", "s"])
            client.call("LeaveConsumerGroup", groupId="g", consumerId="c")
            client.call("JoinConsumerGroup", groupId="g", consumerId="silent", streams=["s"])
            found = events(client, 9)
        door = server.door()
        door.kill()
        server.door(other_than=door.pid)
        with server.client() as client:
            client.call("DeleteStream", name="s")
            found = events(client, 10)
            ids = [each.id for each in found]
            assert ids == sorted(set(ids))
            shown = [each.op for each in found]
            assert shown[:7] == [CREATE, CREATE, CREATE, PAUSE, RESUME, READONLY, JOIN]
            assert sorted(shown[7:]) == [DELETE, JOIN, LEAVE] or shown[7:] == [LEAVE, JOIN, LEAVE]
            names = [each.createStreamOp.stream for each in found[:3]]
            assert sorted(names[:2]) == ["__activity", "__cursors"] and names[2] == "s"
            assert [*found[2].createStreamOp.partitions] == [0, 1] == [*found[3].pauseStreamOp.partitions]
            assert found[3].pauseStreamOp.resumeAll
            assert [*found[4].resumeStreamOp.partitions] == [0, 1]
            assert ([*found[5].setStreamReadonlyOp.partitions], found[5].setStreamReadonlyOp.readonly) == ([1], True)
            assert [*found[6].joinConsumerGroupOp.streams] == ["s", "s"]
            assert client.status("Publish", stream="__activity", value=b"x")[0] == "PERMISSION_DENIED"


def test_a_partition_that_gets_nothing_is_paused(tmp_path: Path) -> None:
    with LiftbridgeServer(tmp_path / "data") as server, server.client() as client:
        client.create("idle", autoPauseTime={"value": 300})
        spared: dict[str, Any] = {"autoPauseTime": {"value": 300}, "autoPauseDisableIfSubscribers": {"value": True}}
        client.create("spared", **spared)
        client.create("awake")
        with client.subscribe("idle") as ended, client.subscribe("spared") as follows:
            assert ended.end() == ("FAILED_PRECONDITION", "commit log was closed")
            time.sleep(0.6)
            assert not client.partition("spared").paused
            assert follows.told() == ["E", "waits"]
        deadline = time.monotonic() + 30
        while client.status("FetchPartitionMetadata", stream="spared")[0] == "OK":
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert client.publish("idle", b"wakes").offset == 0
        assert not client.partition("awake").paused


def test_native_sends_keep_a_partition_awake(tmp_path: Path) -> None:
    """For as long as they come, however little the door hears of them; a poll does not."""
    with LiftbridgeServer(tmp_path / "data") as server, server.client() as client:
        client.create("fed", 2, autoPauseTime={"value": 500})

        def paused() -> list[bool]:
            [described] = client.call("FetchMetadata", streams=["fed"]).streamMetadata
            return [described.partitions[number].paused for number in range(2)]

        with wire.connect(server.address) as tcp:
            end_s = time.monotonic() + 2.5
            while time.monotonic() < end_s:
                tcp.send("liftbridge-default", "fed", wire.to_partition(0), [wire.message(b"native")])
                tcp.poll("liftbridge-default", "fed", 1)
                assert not paused()[0]
                time.sleep(0.05)
            assert paused() == [False, True]
            deadline = time.monotonic() + 30
            while paused() != [True, True]:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            tcp.send("liftbridge-default", "fed", wire.to_partition(1), [wire.message(b"native")])
            while paused() != [True, False]:
                assert time.monotonic() < deadline
                time.sleep(0.02)
