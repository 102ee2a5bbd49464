"""`shardd topic get` and `shardd topic set` against a real server."""

from __future__ import annotations

import json
import os
from typing import Final

from typer.testing import CliRunner, Result

from shardd.cli.main import app
from tests.support import wire
from tests.support.server import Server
from tests.support.serving import Serving


def fill(server: Server) -> None:
    with wire.connect(server.address) as root:
        root.create_topic(root.create_stream("s"), "t", 2)
        root.send("s", "t", wire.to_partition(1), [wire.message(b"12345678")] * 3)
        root.request(33, wire.str8("plain") + wire.str8("secret") + b"\x01\x00")


SERVER: Final = Serving(fill=fill)


def topic(address: str, *arguments: str, **env: str) -> Result:
    clean: dict[str, str | None] = {name: None for name in os.environ if name.startswith(("SHARDD_", "IGGY_"))}
    return CliRunner().invoke(app, ["topic", *arguments, "--address", address], env=clean | env)


def test_get_shows_the_facts_and_what_set_has_changed(server: Server) -> None:
    shown = topic(server.address, "get", "s", "t")
    assert (shown.exit_code, shown.stderr) == (0, "")
    lines = {line.split()[0]: line.split(maxsplit=1)[1] for line in shown.stdout.splitlines() if line}
    assert lines["topic"] == "t (id 0)"
    assert lines["messages"] == f"3 in {3 * 72} bytes"
    assert lines["ack"] == "written  (the server's default)"
    assert lines["1"].split() == ["1", "2", "3", str(3 * 72)]
    done = topic(server.address, "set", "id:0", "id:0", "ack=durable")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "")
    facts = json.loads(topic(server.address, "get", "s", "t", "--json").stdout)
    assert facts["settings"]["ack"] == {"value": "durable", "set": True}
    assert facts["settings"]["retention"] == {"value": "on", "set": True}
    assert (facts["name"], facts["partitions_count"], facts["partitions"][1]["messages_count"]) == ("t", 2, 3)
    assert topic(server.address, "set", "s", "t", "ack=").exit_code == 0
    assert "(the server's default)" in topic(server.address, "get", "s", "t").stdout


def test_what_cannot_be_done_is_one_sentence_and_a_status(server: Server) -> None:
    for arguments, status, sentence in (
        (("set", "s", "t", "ack=sure"), 2, "shardd: ack takes memory, written, durable, not 'sure'"),
        (("set", "s", "t", "ack"), 2, "shardd: write each setting once, as KEY=VALUE"),
        (("set", "s", "t", "colour=red"), 1, "shardd: the server does not have this setting"),
        (("set", "s", "no", "ack=memory"), 1, "shardd: there is no such topic"),
        (("get", "no", "t"), 1, "shardd: there is no topic t in stream no"),
    ):
        done = topic(server.address, *arguments)
        assert (done.exit_code, done.stderr.strip()) == (status, sentence)
    plain = topic(server.address, "set", "s", "t", "ack=memory", SHARDD_USERNAME="plain", SHARDD_PASSWORD="secret")
    assert (plain.exit_code, plain.stderr.strip()) == (1, "shardd: this user may not do that with the topic")
    nobody = topic("127.0.0.1:1", "get", "s", "t")
    assert nobody.exit_code == 1 and nobody.stderr.startswith("shardd: cannot connect to 127.0.0.1:1")
