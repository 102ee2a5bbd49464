"""Groups of one user leave room for others, whatever becomes of its account (docs/adr/0130-shares-of-stored-things.md).
Most of the groups lie in the metadata log at the start."""

from __future__ import annotations

from pathlib import Path

from shardd.metadata.commands import CreateConsumerGroup
from shardd.metadata.group_shares import GROUPS_MAX
from shardd.metadata.load import load_state
from shardd.metadata.log_file import FILE_NAME
from tests.bounded.world import History
from tests.server.test_offset_shares import begin, login
from tests.server.test_revocation import delete_user
from tests.server.test_supervisor import wait_until
from tests.support import wire
from tests.support.server import Server

SETTINGS = {"SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "2"}
CREATE_GROUP, GET_GROUP, JOIN_GROUP, LEAVE_GROUP, UNAVAILABLE = 602, 600, 604, 605, 5
TOPIC = wire.identifier(0) + wire.identifier(0)


def create(client: wire.Wire, name: str) -> int:
    return client.status(CREATE_GROUP, TOPIC + wire.str8(name))


def is_there(client: wire.Wire, name: str) -> bool:
    return client.request(GET_GROUP, TOPIC + wire.identifier(name)) != b""


def add_groups(data: Path, owner: int) -> None:
    """All but one: half of them are this user's, the others nobody's."""
    made = History(load_state(data / FILE_NAME))
    for number in range(GROUPS_MAX - 1):
        of = owner if number < GROUPS_MAX // 2 else 0
        made.add(CreateConsumerGroup(made.stream(0), made.topic(0, 0), f"g{number}", None, of))
    with (data / FILE_NAME).open("ab") as log:
        log.write(b"".join(made.records))


def test_one_user_cannot_take_every_group_and_its_groups_make_room_when_it_is_gone(tmp_path: Path) -> None:
    with Server(tmp_path, SETTINGS) as server, wire.connect(server.address) as root:
        root.create_topic(root.create_stream("s"), "t", 1)
        for name in ("greedy", "other"):
            begin(server, root, name).close()
    add_groups(tmp_path, load_state(tmp_path / FILE_NAME).users[1].incarnation)
    with (
        Server(tmp_path, SETTINGS) as server,
        wire.connect(server.address) as root,
        login(server, "greedy") as greedy,
        login(server, "other") as other,
    ):
        assert create(greedy, "more") == UNAVAILABLE
        assert create(other, "first") == 0
        assert create(root, "second") == UNAVAILABLE  # there is no place, and each group counts
        assert root.status(JOIN_GROUP, TOPIC + wire.identifier("g0")) == 0
        for command in (JOIN_GROUP, LEAVE_GROUP):
            assert other.status(command, TOPIC + wire.identifier("g1")) == 0  # which makes it the one used last
        delete_user(root, "greedy")
        assert is_there(root, "g1")
        assert create(other, "second") == 0
        assert [is_there(root, f"g{number}") for number in range(4)] == [True, True, False, True]
        wait_until(lambda: "consumer group 'g2' of stream 's', topic 't' is removed" in server.log(), "the log tells")
    with (
        Server(tmp_path, SETTINGS) as server,
        wire.connect(server.address) as root,
        login(server, "other") as other,
    ):
        for name in ("third", "fourth"):  # places of the account that is gone, over the restart behind its deletion
            assert create(other, name) == 0
        assert [is_there(root, f"g{number}") for number in range(4)] == [False, False, False, True]  # the oldest first
        assert is_there(root, "first") and is_there(root, "second")
        wait_until(lambda: "consumer group 'g1' of stream 's', topic 't' is removed" in server.log(), "the log tells")
