"""A rename of a native topic or stream does not take over the name of a stream of Liftbridge."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from shardd.protocol.codes import Code
from shardd.protocol.errors import Status
from shardd.protocol.extensions import ExtensionCode
from shardd.protocol.topic_change import ChangeTopic
from tests.support.wire import Wire, identifier, str8
from tests.unit.liftbridge_harness import NAMESPACE, LiftbridgeWorkers, liftbridge_workers

_VALUES = struct.pack("<BQQB", 1, 0, 0, 1)


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiftbridgeWorkers]:
    with liftbridge_workers(tmp_path_factory.mktemp("data")) as running:
        yield running


def make(wire: Wire, stream: str, *topics: str) -> None:
    wire.create_stream(stream)
    for topic in topics:
        wire.create_topic(stream, topic, 1)


def renamed(wire: Wire, stream: str, topic: str, name: str) -> set[int]:
    """The statuses of both commands that rename a topic."""
    address = identifier(stream) + identifier(topic)
    return {
        wire.status(Code.UPDATE_TOPIC, address + _VALUES + str8(name)),
        wire.status(ExtensionCode.CHANGE_TOPIC, ChangeTopic(stream, topic, name=name).encode()),
    }


def rename_stream(wire: Wire, stream: str, name: str) -> int:
    return wire.status(Code.UPDATE_STREAM, identifier(stream) + str8(name))


def test_rename_of_an_older_topic_onto_the_name_of_another_is_refused(workers: LiftbridgeWorkers) -> None:
    wire = workers.connect()
    make(wire, "a", "old")
    make(wire, "a/b", "c")
    found = workers.info("a/b/c")
    assert renamed(wire, "a", "old", "b/c") == {Status.TOPIC_NAME_ALREADY_EXISTS}
    assert workers.info("a/b/c") == found


def test_rename_of_a_younger_topic_takes_no_name_and_is_done(workers: LiftbridgeWorkers) -> None:
    wire = workers.connect()
    make(wire, "y/b", "c")
    make(wire, "y", "young")
    found = workers.info("y/b/c")
    assert wire.status(ExtensionCode.CHANGE_TOPIC, ChangeTopic("y", "young", name="b/c").encode()) == 0
    assert workers.info("y/b/c") == found


def test_rename_in_the_namespace_onto_an_exposed_topic_is_refused(workers: LiftbridgeWorkers) -> None:
    wire = workers.connect()
    workers.make("own", 1)
    make(wire, "shown", "topic")
    found = workers.info("shown/topic")
    assert renamed(wire, NAMESPACE, "own", "shown/topic") == {Status.TOPIC_NAME_ALREADY_EXISTS}
    assert workers.info("shown/topic") == found


def test_rename_of_a_stream_that_would_take_a_name_is_refused(workers: LiftbridgeWorkers) -> None:
    wire = workers.connect()
    make(wire, "first", *(f"topic-{number}" for number in range(70)), "in/deep")
    make(wire, "wanted/in", "deep")
    found = workers.info("wanted/in/deep")
    assert rename_stream(wire, "first", "wanted") == Status.STREAM_NAME_ALREADY_EXISTS
    assert workers.info("wanted/in/deep") == found
    assert rename_stream(wire, "first", "not-wanted") == 0
    assert rename_stream(wire, "not-wanted", "not-wanted") == 0


def test_rename_to_a_free_name_and_to_its_own_is_done(workers: LiftbridgeWorkers) -> None:
    wire = workers.connect()
    make(wire, "free", "topic")
    assert renamed(wire, "free", "topic", "topic") == {0}
    assert wire.status(ExtensionCode.CHANGE_TOPIC, ChangeTopic("free", "topic", name="other").encode()) == 0
    assert workers.info("free/other").native
