"""`shardd user`, `token` and `client`: who may ask, and who is connected."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

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
client_family = Family("Clients that are connected.")
NewName = Annotated[str, Argument("NAME")]
Active = Annotated[bool | None, Option("--active/--inactive", about="Whether it may log in.")]
FromStdin = Annotated[bool, Option("--password-stdin", about="Read passwords from there, a line each.")]
Grants = Annotated[list[str] | None, Option("--grant", about="A right everywhere, such as poll_messages.")]


@remote(user_family, "list", reads=True)
async def list_users(remote: Remote) -> None:
    """All users."""
    remote.show(await remote.client.users(), ("id", "name", "active", "created_at_us"))


@remote(user_family, "get", reads=True)
async def get_user(remote: Remote, user: User) -> None:
    """A user and its rights."""
    facts = plain(await _found(remote, user))
    if remote.output.value == "table":
        rights = facts.pop("permissions") or {}
        facts["rights"] = [name for name, given in rights.items() if given is True]
        facts["rights_in_streams"] = list(rights.get("streams", {}))
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
    rights = _permissions(grant)
    made = await remote.client.create_user(name, password, active=active is not False, permissions=rights)
    remote.done(f"user {made.name} is made (id {made.id})", user=made.name, id=made.id)


def _permissions(grants: list[str] | None) -> Any:
    """None: no rights. CommandError for one that there is not."""
    import difflib
    from dataclasses import fields

    from shardd.client.values import Permissions

    known = [each.name for each in fields(Permissions) if each.name != "streams"]
    for name in grants or ():
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f"; is {close[0]!r} meant?" if close else f"; there are {', '.join(known)}"
            raise CommandError(f"there is no right {name}{hint}", EXIT_USAGE)
    rights: dict[str, Any] = dict.fromkeys(grants or (), True)
    return Permissions(**rights) if rights else None


@remote(user_family, "update")
async def update_user(
    remote: Remote,
    user: User,
    name: Annotated[str | None, Option("--name", about="Another name.")] = None,
    active: Active = None,
    grant: Grants = None,
    no_rights: Annotated[bool, Option("--no-rights", about="Take all rights.")] = False,
) -> None:
    """Change name, state or rights. `--grant` says all rights; those in single streams end."""
    if (grant or no_rights) and not (grant and no_rights):
        await remote.client.update_permissions(identifier(user), _permissions(grant))
    elif grant:
        raise CommandError("choose one of --grant and --no-rights", EXIT_USAGE)
    if name is not None or active is not None:
        await remote.client.update_user(identifier(user), name=name, active=active)
    elif not (grant or no_rights):
        raise CommandError("say what is to be changed", EXIT_USAGE)
    remote.done(f"user {user} is changed", user=name or user)


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
