"""The frames of docs/protocol/examples.md, sent to a server one after the other as they stand there."""

from __future__ import annotations

from typing import Final

from shardd.protocol.codes import Code
from tests.support.examples import frames
from tests.support.server import UP_TO_TWO_SHARDS, Server
from tests.support.serving import Serving
from tests.support.wire import Wire

HEAD_BYTES = 8
NO_GROUP = 5000  # nobody has made the group of the examples
SERVER: Final = Serving(env=UP_TO_TWO_SHARDS)


def test_a_server_takes_the_examples_in_their_order(server: Server) -> None:
    answers: dict[Code, list[tuple[int, bytes]]] = {}
    with Wire(server.address) as connection:
        for frame in frames("request"):
            connection.send_bytes(frame)
            code = Code(int.from_bytes(frame[4:8], "little"))
            answers.setdefault(code, []).append(connection.reply())
    as_group = [*answers.pop(Code.STORE_CONSUMER_OFFSET), answers[Code.POLL_MESSAGES].pop()]
    assert [status for status, _ in as_group] == [NO_GROUP, NO_GROUP]
    assert {status for of_code in answers.values() for status, _ in of_code} == {0}
    described = frames("response")
    [login], [stream], [polled] = (answers[code] for code in (Code.LOGIN_USER, Code.CREATE_STREAM, Code.POLL_MESSAGES))
    assert login[1] == described[0][HEAD_BYTES:]
    for answer in (stream, polled):
        assert len(answer[1]) in [len(each) - HEAD_BYTES for each in described]
    assert polled[1].endswith(b"hello")


def test_a_server_answers_a_wrong_password_as_the_example(server: Server) -> None:
    login = frames("request")[0].replace(b"\x04iggy\x06", b"\x04iggi\x06")
    with Wire(server.address) as connection:
        connection.send_bytes(login)
        assert connection.receive(HEAD_BYTES) == frames("response")[1]
