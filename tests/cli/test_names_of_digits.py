"""Streams, topics, groups and users whose names are digits: a command that changes something takes digits as a name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from shardd.client import SyncClient
from tests.cli.transcript import Shell
from tests.support.server import ONE_SHARD, Server
from tests.support.serving import Serving

SERVER: Final = Serving(env=ONE_SHARD)


@pytest.fixture
def shell(server: Server, tmp_path: Path) -> Iterator[Shell]:
    """A stream `first` with a topic `events` and a group `billing`; their ids are taken from the server."""
    with SyncClient(f"shardd://iggy:iggy@{server.address}") as client:
        for stream in client.streams():
            client.delete_stream(stream.id)
        client.create_stream("first")
        client.create_topic("first", "events")
        client.create_group("first", "events", "billing")
        yield Shell(server.address, tmp_path)


def client_of(shell: Shell) -> SyncClient:
    return SyncClient(f"shardd://iggy:iggy@{shell.address}")


def stream_id(shell: Shell) -> int:
    with client_of(shell) as client:
        return next(each.id for each in client.streams() if each.name == "first")


def names(shell: Shell) -> set[str]:
    with client_of(shell) as client:
        return {each.name for each in client.streams()}


def test_stream_delete_of_digits_deletes_the_stream_of_that_name(shell: Shell) -> None:
    number = stream_id(shell)
    shell.run(f"shardd stream create {number}")
    shell.run(f"shardd stream delete {number} -y")
    assert names(shell) == {"first"}


CHANGES = (
    "stream delete N -y",
    "stream purge N -y",
    "stream update N other",
    "topic create N made",
    "topic update first 0 --name other",
    "topic delete first 0 -y",
    "topic purge first 0 -y",
    "topic settings set first 0 retention=off",
    "topic set first 0 retention=off",
    "partition create first 0",
    "partition delete first 0 -y",
    "segment delete first 0 0 -y",
    "produce first 0",
    "message import first 0",
    "consume first 0 -g some",
    "group create first 0 some",
    "group delete first events 0 -y",
    "group seek first events 0 --to-latest -y",
    "offset update first events 0 0 0",
    "offset delete first events 0 0 -y",
    "user update 0 --inactive",
    "user delete 0 -y",
    "user password 0 --password-stdin",
)


@pytest.mark.parametrize("line", CHANGES)
def test_changing_command_takes_digits_as_a_name_only(shell: Shell, line: str) -> None:
    number = stream_id(shell)
    said = shell.run(f"shardd {line.replace('N', str(number))}", "iggy\niggy2\n")
    assert said.endswith(("[3]\n", "[1]\n" if line.startswith("topic set ") else "[3]\n")), said
    with client_of(shell) as client:
        assert {each.name for each in client.streams()} == {"first"}
        assert [each.name for each in client.topics("first")] == ["events"]
        assert [each.name for each in client.groups("first", "events")] == ["billing"]
        assert client.topics("first")[0].partitions_count == 1


def test_refused_digits_say_how_an_id_is_written(shell: Shell) -> None:
    number = stream_id(shell)
    assert shell.run(f"shardd stream delete {number} -y") == (
        f"shardd: there is no stream named {number}; id:{number} is stream 'first'\n[3]\n"
    )


def test_ids_and_names_are_told_apart_by_what_stands_before(shell: Shell) -> None:
    number = stream_id(shell)
    shell.run(f"shardd stream create {number}")
    shell.run(f"shardd stream create id:{number}")
    assert f"name        {number}\n" in shell.run(f"shardd stream get name:{number}")
    assert f"name        {number}\n" in shell.run(f"shardd stream get {number}")
    assert "name        first\n" in shell.run(f"shardd stream get id:{number}")
    assert f"name        id:{number}\n" in shell.run(f"shardd stream get name:id:{number}")
    assert shell.run("shardd stream get id:first").startswith("shardd: 'id:first' is not an id; write id:NUMBER")
    assert shell.run("shardd stream get id:4294967296").startswith("shardd: 'id:4294967296' is not an id")


def test_reading_command_takes_digits_as_an_id_where_no_such_name_exists(shell: Shell) -> None:
    number = stream_id(shell)
    assert "name        first\n" in shell.run(f"shardd stream get {number}")
    for line in (f"topic get {number} 0", f"group get {number} 0 0", f"lag {number} 0 0", f"consume {number} 0"):
        assert "there is no" not in shell.run(f"shardd {line}")
    assert "iggy\n" in shell.run("shardd user get 0")


def test_loss_is_told_with_name_and_id(shell: Shell) -> None:
    number = stream_id(shell)
    with client_of(shell) as client:
        topic = client.topics("first")[0].id
    place = f"first/events (ids {number}/{topic})"
    stream = f"first (id {number})"
    assert f"Stream {stream} goes with" in shell.run("shardd stream delete first")
    assert f"messages of stream {stream} go" in shell.run("shardd stream purge first")
    assert f"Topic {place} goes with" in shell.run("shardd topic delete first events")
    assert f"messages of topic {place} go" in shell.run(f"shardd topic purge id:{number} id:{topic}")
    assert f"of topic {place} go" in shell.run("shardd partition delete first events")
    assert f"Group billing (id 0) of {place} goes" in shell.run("shardd group delete first events billing")
    shell.run("shardd user create ada --password-stdin", "correct horse\n")
    assert "User ada (id 1) goes" in shell.run("shardd user delete ada")
    assert shell.run("shardd stream delete first -y").startswith(f"stream {stream} is deleted with")
