"""Rights of users: given, taken and replaced one by one, everywhere, in streams and in topics; groups in use; root."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from shardd.cli.rights import held, permissions_of
from shardd.client import SyncClient
from shardd.client.client import Client
from shardd.client.commands import join_group
from shardd.client.errors import AuthenticationError, GroupInUseError
from shardd.client.values import Permissions, StreamRights, TopicRights
from tests.cli.transcript import Shell
from tests.support.server import ONE_SHARD, Server
from tests.support.serving import Serving


def fill(server: Server) -> None:
    with client_of(server.address) as client:
        client.create_stream("orders")
        client.create_topic("orders", "events")
        client.create_group("orders", "events", "billing")


SERVER: Final = Serving(env=ONE_SHARD, fill=fill)


@pytest.fixture
def shell(server: Server, tmp_path: Path) -> Iterator[Shell]:
    """A user ada that may read servers, and everything of one topic."""
    rights = Permissions(read_servers=True, streams={0: StreamRights(topics={0: TopicRights(poll_messages=True)})})
    with client_of(server.address) as client:
        client.create_user("ada", "secret", permissions=rights)
        yield Shell(server.address, tmp_path)
        client.delete_user("ada")


def client_of(address: str, who: str = "iggy:iggy") -> SyncClient:
    return SyncClient(f"shardd://{who}@{address}")


def rights(shell: Shell) -> Permissions | None:
    with client_of(shell.address) as client:
        found = client.user("ada")
        assert found is not None
        return found.permissions


def test_grant_adds_and_keeps_what_there_is(shell: Shell) -> None:
    said = shell.run("shardd user update ada --grant poll_messages --grant orders:read_stream")
    assert said == (
        "user ada is changed; rights before: orders/events:poll_messages, read_servers"
        "; rights after: orders/events:poll_messages, orders:read_stream, poll_messages, read_servers\n"
    )
    topics = {0: TopicRights(poll_messages=True)}
    streams = {0: StreamRights(read_stream=True, topics=topics)}
    assert rights(shell) == Permissions(read_servers=True, poll_messages=True, streams=streams)


def test_revoke_takes_one_right(shell: Shell) -> None:
    shell.run("shardd user update ada --revoke read_servers --grant id:0/id:0:send_messages")
    topics = {0: TopicRights(poll_messages=True, send_messages=True)}
    assert rights(shell) == Permissions(streams={0: StreamRights(topics=topics)})
    assert "orders/events:poll_messages, orders/events:send_messages" in shell.run("shardd user get ada")


def test_set_replaces_all_rights(shell: Shell) -> None:
    said = json.loads(shell.run("shardd user update ada --set orders:manage_topics -o json"))
    assert said["after"] == ["orders:manage_topics"] and len(said["before"]) == 2
    assert rights(shell) == Permissions(streams={0: StreamRights(manage_topics=True)})


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("--grant poll_mesages", 2), ("--grant orders:manage_users", 2), ("--grant orders/events:read_topics", 2),
        ("--grant none:read_stream", 3), ("--grant orders/none:read_topic", 3), ("--grant :read_stream", 3),
        ("--set read_servers --grant poll_messages", 2), ("--no-rights --revoke read_servers", 2), ("--name ''", 2),
        ("", 2),
    ],
)  # fmt: skip
def test_rights_that_there_are_not_change_nothing(shell: Shell, words: str, status: int) -> None:
    before = rights(shell)
    said = shell.run(f"shardd user update ada {words}")
    assert said.endswith(f"[{status}]\n") and said.count("\n") == 2
    assert rights(shell) == before


def test_change_of_somebody_else_is_told_and_not_overwritten(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    found, looks = Client.user, []

    async def user(self: Client, name: int | str) -> Any:
        looks.append(name)
        if len(looks) == 2:  # behind what was read first
            await self.update_permissions("ada", Permissions(manage_users=True))
        return await found(self, name)

    monkeypatch.setattr(Client, "user", user)
    said = shell.run("shardd user update ada --grant poll_messages")
    monkeypatch.undo()
    assert said == (
        "shardd: somebody else has changed the rights of user ada; nothing was written; now: manage_users\n[1]\n"
    )
    assert rights(shell) == Permissions(manage_users=True)


def test_rights_survive_the_way_through_their_words() -> None:
    topics = {3: TopicRights(True, False, True, True), 4: TopicRights(read_topic=True)}
    there = Permissions(manage_topics=True, streams={1: StreamRights(read_topics=True), 2: StreamRights(topics=topics)})
    assert permissions_of(held(there)) == there
    assert permissions_of(held(None)) is None


def test_first_user_is_made_inactive_only_on_purpose(shell: Shell) -> None:
    said = shell.run("shardd user update iggy --inactive")
    assert said.startswith("shardd: User iggy (id 0) is the first one") and said.endswith("[2]\n")
    with client_of(shell.address) as client:
        assert client.me() is not None


def test_group_with_members_is_not_deleted_without_force(shell: Shell) -> None:
    with client_of(shell.address) as member:
        member.call(join_group("orders", "events", "billing"))
        said = shell.run("shardd group delete orders events billing --yes")
        group = "group billing (id 0) of orders/events (ids 0/0)"
        assert said == f"shardd: {group} has 1 members; stop them first, or say --force\n[1]\n"
        with client_of(shell.address) as client, pytest.raises(GroupInUseError, match="orders/events has 1 members"):
            client.delete_group("orders", "events", "billing")
        assert member.group("orders", "events", "billing") is not None
        said = shell.run("shardd group delete orders events billing --yes --force")
        assert said == "group billing (id 0) is deleted\n"
        member.create_group("orders", "events", "billing")


def test_offset_of_a_single_consumer_says_what_it_does_not_do(shell: Shell) -> None:
    shell.run("shardd produce orders events", "one\n")
    said = shell.run("shardd offset update orders events me 0 0 --consumer")
    assert said.endswith("; a consumer that runs goes on where it is and stores over it: stop it first\n")


def test_lost_root_password_is_replaced_in_a_stopped_directory(tmp_path: Path) -> None:
    data = tmp_path / "data"
    shell = Shell("127.0.0.1:1", tmp_path)
    words = f"shardd doctor root-password --path {data} --password-stdin"
    with Server(data, ONE_SHARD) as server:
        said = shell.run(words, "new secret\n")
        assert said.startswith("shardd: ") and said.endswith("[1]\n")
    assert shell.run(words, "x\n") == "shardd: a password has 3 to 100 bytes\n[2]\n"
    assert shell.run(words, "new secret\n") == "user iggy has another password\n"
    generated = shell.run(words.removesuffix(" --password-stdin")).split()[-1]
    with Server(data, ONE_SHARD) as server:
        with client_of(server.address, f"iggy:{generated}") as client:
            assert client.me() is not None
        with client_of(server.address, "iggy:iggy") as client, pytest.raises(AuthenticationError):
            client.me()
