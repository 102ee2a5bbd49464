"""Members of one user leave room for others in a consumer group that they know by its name
(docs/adr/0138-shares-of-liftbridge-groups.md). Most of the members lie in the metadata log at the start."""

from __future__ import annotations

from pathlib import Path

from shardd.metadata.commands import JoinLiftbridgeGroup, Ref
from shardd.metadata.liftbridge import find_liftbridge
from shardd.metadata.liftbridge_state import MEMBERS_MAX
from shardd.metadata.load import load_state
from shardd.metadata.log_file import FILE_NAME
from shardd.protocol.permissions import Permissions
from tests.bounded.world import History
from tests.doors.liftbridge_server import LiftbridgeClient, LiftbridgeServer
from tests.server.test_revocation import delete_user
from tests.support import wire

READER = Permissions(poll_messages=True)
SETTINGS = {"SHARDD_LIFTBRIDGE_GROUP_CONSUMER_TIMEOUT": "1 h"}  # none of these members is silent for so long
FULL = "FAILED_PRECONDITION"


def join(client: LiftbridgeClient, consumer: str) -> str:
    return client.status("JoinConsumerGroup", groupId="g", consumerId=consumer, streams=["s"])[0]


def add_members(data: Path, name: str, count: int) -> None:
    state = load_state(data / FILE_NAME)
    user, found = state.users[state.user_ids[name]], find_liftbridge(state, "s")
    assert found is not None
    place = Ref(found[0].id, found[0].incarnation), Ref(found[1].id, found[1].incarnation)
    made = History(state)
    for number in range(count):
        made.add(JoinLiftbridgeGroup(Ref(user.id, user.incarnation), "g", f"greedy.{number}", (place,)))
    with (data / FILE_NAME).open("ab") as log:
        log.write(b"".join(made.records))


def test_one_reader_cannot_take_every_member_of_a_group(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with LiftbridgeServer(data, SETTINGS) as server:
        for name in ("greedy", "other"):
            server.create_user(name, READER)
        with server.client() as client:
            client.create("s")
        server.stop()
        add_members(data, "greedy", MEMBERS_MAX // 2 - 1)
        server.start()
        with server.logged_in("greedy") as greedy, server.logged_in("other") as other:
            more = 0
            while (refused := join(greedy, f"more.{more}")) == "OK":
                more += 1
            assert refused == FULL
            assert join(other, "first") == "OK"
            with wire.connect(server.address) as classic:
                delete_user(classic, "greedy")
            server.create_user("greedy", READER)
        with server.logged_in("greedy") as again:
            assert join(again, "first of the new account") == "OK"  # what the deleted one has counts for no user
