"""`shardd context`, `login`, `logout`: servers that are asked often, in ~/.config/shardd/contexts.toml (mode 0600)."""

from __future__ import annotations

import os
import socket
import sys
from typing import Annotated, Any

from shardd.cli.declared import Argument, Family, Option
from shardd.cli.remote import EXIT_EXISTS, EXIT_USAGE, CommandError, Format, Output, Remote, asked, carry_out, end

context_family = Family("Saved servers.")
Name = Annotated[str, Argument("NAME")]
Server = Annotated[str, Option("--url", about="shardd://host:port")]
_SECRET = ("password", "token")


def load() -> dict[str, Any]:
    """{"current": name, "contexts": {name: values}}. CommandError for a file that cannot be read."""
    import tomllib

    from shardd.client.settings import contexts_path

    path = contexts_path(os.environ)
    try:
        content = tomllib.loads(path.read_text())
    except FileNotFoundError:
        content = {}
    except (OSError, ValueError) as error:
        raise CommandError(f"{path} cannot be read: {error}", EXIT_USAGE) from None
    content.setdefault("contexts", {})
    if not isinstance(content["contexts"], dict) or not all(isinstance(v, dict) for v in content["contexts"].values()):
        raise CommandError(f"{path} has contexts that are no tables", EXIT_USAGE)
    return content


def save(content: dict[str, Any]) -> None:
    """Whole or not at all, and never readable for others."""
    from shardd.client.settings import contexts_path

    path = contexts_path(os.environ)
    lines = [f"current = {_toml(content['current'])}"] if content.get("current") else []
    for name, values in content["contexts"].items():
        lines += ["", f"[contexts.{_toml(name)}]", *(f"{key} = {_toml(value)}" for key, value in values.items())]
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write("\n".join(lines) + "\n")
    new.replace(path)


def _toml(value: Any) -> str:
    import json  # its strings, numbers and booleans are those of TOML, but for one character

    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def known(content: dict[str, Any], name: str) -> dict[str, Any]:
    """The values of a context. CommandError with the one that may be meant."""
    import difflib

    if name not in content["contexts"]:
        close = difflib.get_close_matches(name, content["contexts"], 1)
        hint = f"; is {close[0]!r} meant?" if close else ""
        raise CommandError(f"there is no context {name!r}{hint}", EXIT_USAGE)
    values: dict[str, Any] = content["contexts"][name]
    return values


def _ending(work: Any, *arguments: Any) -> None:
    try:
        work(*arguments)
    except CommandError as error:
        end(str(error), error.status)
    except OSError as error:
        end(f"contexts cannot be written: {error}", 1)


@context_family.command("list")
def list_contexts(output: Output = Format.TABLE) -> None:
    """All of them; secrets are not shown."""

    def work() -> None:
        content = load()
        rows = [
            {
                "name": name,
                "current": name == content.get("current"),
                "url": values.get("url", ""),
                "login": "token" if {"token", "token_file"} & values.keys() else values.get("username", ""),
            }
            for name, values in content["contexts"].items()
        ]
        Remote(None, output).show(rows, ("name", "current", "url", "login"))  # type: ignore[arg-type]

    _ending(work)


@context_family.command("use")
def use_context(name: Name) -> None:
    """Ask this server from now on."""

    def work() -> None:
        content = load()
        known(content, name)
        save(content | {"current": name})
        _say(f"context {name} is used")

    _ending(work)


@context_family.command("create")
def create_context(
    name: Name,
    url: Server,
    username: Annotated[str, Option("--username", "-u")] = "",
    password_stdin: Annotated[bool, Option("--password-stdin", about="Read the password from there.")] = False,
) -> None:
    """Save a server. Better without a password: `shardd login` saves a token."""

    def work() -> None:
        from shardd.client.errors import ClientError
        from shardd.client.settings import parse

        try:
            parse(url)
        except ClientError as error:
            raise CommandError(str(error), EXIT_USAGE) from None
        content = load()
        if name in content["contexts"]:
            raise CommandError(f"there is a context {name!r} already", EXIT_EXISTS)
        values = {"url": url} | ({"username": username} if username else {})
        if password_stdin:
            values["password"] = sys.stdin.readline().rstrip("\n")
        content["contexts"][name] = values
        content.setdefault("current", name)
        save(content)
        _say(f"context {name} is saved")

    _ending(work)


@context_family.command("delete")
def delete_context(name: Name) -> None:
    """Forget a server; a token of it stays valid (`shardd logout` ends it)."""

    def work() -> None:
        content = load()
        known(content, name)
        del content["contexts"][name]
        if content.get("current") == name:
            del content["current"]
        save(content)
        _say(f"context {name} is forgotten")

    _ending(work)


# ---- login and logout ----


def token_name(context: str) -> str:
    return f"shardd-{socket.gethostname()[:12]}-{context[:10]}"


def log_in(context: str | None, url: str | None, username: str | None, *, password_stdin: bool, expiry_us: int) -> None:
    """Makes a token with a password, and saves it in a context."""

    def work() -> None:
        from dataclasses import replace

        from shardd.client.errors import ClientError
        from shardd.client.settings import parse

        content = load()
        name = context or content.get("current") or "default"
        values = dict(content["contexts"].get(name, {}))
        where = url or values.get("url", "shardd://127.0.0.1:8090")
        try:
            settings = parse(where)
        except ClientError as error:
            raise CommandError(str(error), EXIT_USAGE) from None
        who = username or settings.username or values.get("username") or asked("User")
        password = settings.password or _password(who, password_stdin)
        bare = replace(settings, username="", password="", token="")

        async def make(remote: Remote) -> None:
            client = remote.client
            wanted = token_name(name)
            if any(each.name == wanted for each in await client.tokens()):
                await client.delete_token(wanted)
            token = await client.create_token(wanted, expiry_us=expiry_us)
            kept = {key: value for key, value in values.items() if key not in (*_SECRET, "token_file", "username")}
            content["contexts"][name] = kept | {"url": without_login(where), "token": token}
            content.setdefault("current", name)
            save(content)
            _say(f"{who} is logged in at {bare.address}, context {name}")

        carry_out_with(make, replace(bare, username=who, password=password))

    _ending(work)


def _say(sentence: str) -> None:
    from shardd.cli.output import printable

    print(printable(sentence))


def without_login(url: str) -> str:
    """For files and reports: of a text that is not a connection string less is left rather than a secret."""
    from shardd.client.errors import SettingsError
    from shardd.client.settings import parse, parted

    try:
        parse(url)
        place = parted(url)[2]
    except SettingsError:
        place = url.rpartition("://")[2].rpartition("@")[2]
    return f"{parted(url)[0]}://{place}" if "://" in url else place


def carry_out_with(work: Any, settings: Any) -> None:
    carry_out(work, settings, None, Format.TABLE, {})


def _password(who: str, from_stdin: bool) -> str:
    if from_stdin:
        return sys.stdin.readline().rstrip("\n")
    if "SHARDD_PASSWORD" in os.environ:
        return os.environ["SHARDD_PASSWORD"]
    if not sys.stdin.isatty():
        raise CommandError("there is no terminal to ask for the password; --password-stdin reads it", EXIT_USAGE)
    return asked(f"Password of {who}", hidden=True)


def log_out(context: str | None) -> None:
    """Ends the token at the server, and forgets it."""

    def work() -> None:
        content = load()
        name = context or content.get("current")
        if name is None:
            raise CommandError("there is no current context", EXIT_USAGE)
        values = known(content, name)
        if "token" not in values:
            raise CommandError(f"context {name} has no token", EXIT_USAGE)

        async def end_token(remote: Remote) -> None:
            await remote.client.delete_token(token_name(name))

        try:
            carry_out(end_token, None, name, Format.TABLE, {})
        finally:
            del values["token"]
            save(content)
        _say(f"context {name} has no token any more")

    _ending(work)
