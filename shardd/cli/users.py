"""`shardd user`, `token` and `client`: who may ask, and who is connected."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, Final

from shardd.cli.declared import Argument, Family, Option
from shardd.cli.durations import token_expiry_us
from shardd.cli.identity import identifier
from shardd.cli.names import TokenName, User
from shardd.cli.output import named_with_id, plain
from shardd.cli.remote import EXIT_NOT_FOUND, EXIT_USAGE, CommandError, Remote, Yes, asked, remote

if TYPE_CHECKING:
    from shardd.client import values

user_family = Family("Users of a server.")
token_family = Family("Tokens of the user who asks.")
ROOT: Final = 0
client_family = Family("Clients that are connected.")
NewName = Annotated[str, Argument("NAME")]
Active = Annotated[bool | None, Option("--active/--inactive", about="Whether it may log in.")]
FromStdin = Annotated[bool, Option("--password-stdin", about="Read passwords from there, a line each.")]
_RIGHTS: Final = "RIGHT, STREAM:RIGHT or STREAM/TOPIC:RIGHT, such as orders:poll_messages."
Grants = Annotated[list[str] | None, Option("--grant", about=_RIGHTS)]


@remote(user_family, "list", reads=True)
async def list_users(remote: Remote) -> None:
    """All users."""
    remote.show(await remote.client.users(), ("id", "name", "active", "created_at_us"))


@remote(user_family, "get", reads=True)
async def get_user(remote: Remote, user: User) -> None:
    """A user and its rights."""
    found = await _found(remote, user)
    facts = plain(found)
    if remote.output.value == "table":
        from shardd.cli.rights import held, shown

        facts.pop("permissions")
        facts["rights"] = await shown(remote, held(found.permissions))
    remote.show_one(facts)


async def _found(remote: Remote, user: str) -> values.User:
    from shardd.client import statuses
    from shardd.client.errors import NotFoundError

    found = await remote.client.user(identifier(user))
    if found is None:
        raise NotFoundError(min(statuses.NOT_FOUND))
    return found


@remote(user_family, "create")
async def create_user(
    remote: Remote, name: NewName, password_stdin: FromStdin = False, active: Active = None, grant: Grants = None
) -> None:
    """Make a user."""
    password = _asked("Password", password_stdin)
    from shardd.cli.rights import permissions_of, rights_of

    rights = permissions_of(await rights_of(remote, grant))
    made = await remote.client.create_user(name, password, active=active is not False, permissions=rights)
    remote.done(f"user {made.name} is made (id {made.id})", user=made.name, id=made.id)


@remote(user_family, "update")
async def update_user(
    remote: Remote,
    user: User,
    name: Annotated[str | None, Option("--name", about="Another name.")] = None,
    active: Active = None,
    grant: Grants = None,
    revoke: Annotated[list[str] | None, Option("--revoke", about="Take a right, written as of --grant.")] = None,
    set_: Annotated[list[str] | None, Option("--set", about="These rights and no others, as of --grant.")] = None,
    no_rights: Annotated[bool, Option("--no-rights", about="Take all rights.")] = False,
    yes: Yes = False,
) -> None:
    """Change name, state or rights; rights are shown as they were and as they are."""
    if sum((bool(grant or revoke), bool(set_), no_rights)) > 1:
        raise CommandError("choose one of --set, --no-rights, and --grant with --revoke", EXIT_USAGE)
    if name is None and active is None and not (grant or revoke or set_ or no_rights):
        raise CommandError("nothing was changed; say what is to be", EXIT_USAGE)
    if name == "":
        raise CommandError("nothing was changed; --name '' is not a name", EXIT_USAGE)
    found = await _found(remote, user)
    facts: dict[str, Any] = {}
    if grant or revoke or set_ or no_rights:
        from shardd.cli.rights import Change, change_rights

        change = Change(grant or [], revoke or [], None if not (set_ or no_rights) else set_ or [])
        facts = await change_rights(remote, found, change)
    if active is False and found.id == ROOT:
        remote.confirm(f"User {named_with_id(found)} is the first one: inactive it administers nothing.", yes=yes)
    if name is not None or active is not None:
        await remote.client.update_user(found.id, name=name, active=active)
    sentence = f"user {user} is changed"
    if facts:
        before, after = ("; rights " + word + ": " + (", ".join(facts[word]) or "-") for word in ("before", "after"))
        sentence += before + after
    remote.done(sentence, user=name or found.name, **facts)


@remote(user_family, "password")
async def change_password(remote: Remote, user: User, password_stdin: FromStdin = False) -> None:
    """Change a password: the current one, then the new one."""
    current = _asked("Current password", password_stdin)
    await remote.client.change_password(identifier(user), current, _asked("New password", password_stdin))
    remote.done(f"user {user} has another password", user=user)


def _asked(question: str, from_stdin: bool) -> str:
    if from_stdin:
        return sys.stdin.readline().rstrip("\n")
    if not sys.stdin.isatty():
        raise CommandError("there is no terminal to ask for a password; --password-stdin reads it", EXIT_USAGE)
    return asked(question, hidden=True)


@remote(user_family, "delete")
async def delete_user(remote: Remote, user: User, yes: Yes = False) -> None:
    """Delete a user with its tokens; its connections end."""
    found = await _found(remote, user)
    named = named_with_id(found)
    remote.confirm(f"User {named} goes with its rights and tokens.", yes=yes)
    await remote.client.delete_user(found.id)
    remote.done(f"user {named} is deleted", user=found.name, id=found.id, deleted=True)


# ---- tokens ----


@remote(token_family, "list")
async def list_tokens(remote: Remote) -> None:
    """Names of the tokens; nobody can read them again."""
    remote.show(await remote.client.tokens(), ("name", "expires_at_us"))


@remote(token_family, "create")
async def create_token(
    remote: Remote,
    name: NewName,
    expiry_days: Annotated[float, Option("--expiry-days", least=0.0, about="0: never.")] = 30.0,
) -> None:
    """Make a token. It is told only here."""
    token = await remote.client.create_token(name, expiry_us=token_expiry_us(expiry_days))
    remote.done(token, name=name, token=token)


@remote(token_family, "delete")
async def delete_token(remote: Remote, token: TokenName, yes: Yes = False) -> None:
    """End a token."""
    remote.confirm(f"Who uses token {token} can log in no more.", yes=yes)
    await remote.client.delete_token(token)
    remote.done(f"token {token} is deleted", token=token, deleted=True)


# ---- clients ----


@remote(client_family, "list")
async def list_clients(remote: Remote) -> None:
    """Who is connected."""
    columns = ("id", "user_id", "transport", "address", "memberships_count")
    remote.show(await remote.client.all_connected(), columns)


@remote(client_family, "get")
async def get_client(remote: Remote, client: Annotated[int, Argument("ID", least=0)]) -> None:
    """One of them, with its groups."""
    found = await remote.client.connected(client)
    if found is None:
        raise CommandError(f"there is no client {client}", EXIT_NOT_FOUND)
    remote.show_one(found)


@remote(client_family, "me")
async def get_me(remote: Remote) -> None:
    """This connection, as the server sees it."""
    remote.show_one(await remote.client.me())
