"""The producers of one user leave room for those of another, in a partition and in a worker, also after a restart
(docs/adr/0130-shares-of-stored-things.md)."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from shardd.metadata.producers import PRODUCERS_OF_USER_MAX
from shardd.protocol.extensions import ExtensionCode
from shardd.protocol.permissions import Permissions
from shardd.protocol.primitives import Reader
from shardd.protocol.producers import InitProducer, Produced, ProducedKind, ProducerEpoch
from tests.server.test_idempotent_producers import init, once, payload_of
from tests.server.test_retention import create_topic
from tests.server.test_revocation import create_user
from tests.support import wire
from tests.support.server import ONE_SHARD, Server

AT_ONCE = 64
SENDER = Permissions(send_messages=True)  # the least right that begins a producer


def pipelined(client: wire.Wire, code: int, payloads: list[bytes]) -> list[bytes]:
    """The answers, which are all good."""
    answers = []
    for first in range(0, len(payloads), AT_ONCE):
        several = payloads[first : first + AT_ONCE]
        client.send_bytes(b"".join(wire.frame(code, payload) for payload in several))
        for _ in several:
            status, answer = client.reply()
            assert status == 0
            answers.append(answer)
    return answers


def login(server: Server, name: str) -> wire.Wire:
    client = wire.Wire(server.address)
    client.login(name, "secret")
    return client


def test_as_many_producers_as_a_user_may_have_leave_room_in_a_partition(tmp_path: Path) -> None:
    stored = Produced(ProducedKind.STORED, 1, PRODUCERS_OF_USER_MAX)
    with Server(tmp_path / "data", env=ONE_SHARD) as server:
        with wire.connect(server.address) as root:
            root.create_stream("s")
            create_topic(root)
            create_user(root, "greedy", SENDER)
            create_user(root, "other", SENDER)
        with login(server, "greedy") as greedy:
            asked = [InitProducer(0, 0, False).encode()] * PRODUCERS_OF_USER_MAX
            begun = pipelined(greedy, ExtensionCode.INIT_PRODUCER, asked)
            all_of_it = [ProducerEpoch.read(Reader(answer)) for answer in begun]
            pipelined(greedy, ExtensionCode.SEND_ONCE, [payload_of(who, 0, [1]) for who in all_of_it])
        with login(server, "other") as other:
            who = init(other)
            assert once(other, who, 0, [2]) == stored
        for pid in (server.pid, *server.running_workers().values()):
            os.kill(pid, signal.SIGKILL)
        server.stop()
        server.start()
        with login(server, "other") as other, login(server, "greedy") as greedy:
            assert once(other, who, 0, [2]).kind is ProducedKind.DUPLICATE
            assert once(greedy, all_of_it[-1], 0, [1]).kind is ProducedKind.DUPLICATE
            assert once(other, init(other), 0, [3]).kind is ProducedKind.STORED
