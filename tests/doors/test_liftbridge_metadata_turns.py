"""FetchMetadata of one user, again and again: some answers are put together at a time (its share of `ANSWERS_MAX`), and
another user has a place. Nothing is measured: the calls of the crowd that have ended are counted."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from shardd.protocol.liftbridge import api, api_messages
from tests.doors.liftbridge_server import ROOT, WAIT_S, LiftbridgeServer
from tests.support.stalls import wait_until

CROWD: Final = 400  # below what one user may have under way
PARTITIONS: Final = 1_000


def test_metadata_for_a_crowd_of_one_user_leave_a_turn_to_another_user(tmp_path: Path) -> None:
    with LiftbridgeServer(tmp_path / "data") as server, ExitStack() as held:
        other = held.enter_context(server.client(ROOT))
        other.create("wide", partitions=PARTITIONS)
        attackers = [held.enter_context(server.logged_in("liftbridge")) for _ in range(4)]
        for each in (other, *attackers):
            assert each.status("FetchMetadata") == ("OK", "")
        request = api_messages.FetchMetadataRequest().SerializeToString()
        crowd: list[Any] = []
        for number in range(CROWD):
            client = attackers[number % len(attackers)]
            fetch = client.channel.unary_unary(f"/{api.SERVICE}/FetchMetadata")
            crowd.append(fetch.future(request, timeout=WAIT_S, metadata=client.metadata))
        wait_until(lambda: any(each.done() for each in crowd), "the crowd is served")
        assert other.status("FetchMetadata") == ("OK", "")
        assert sum(each.done() for each in crowd) < CROWD // 2, "in order of arrival all others come first"
