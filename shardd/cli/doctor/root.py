"""`shardd doctor root-password`: a new password for the first user, in the directory of a stopped server."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path
from typing import Annotated, Final, NoReturn

import typer

from shardd.cli.offline import locked
from shardd.cli.options import EXIT_USAGE, ConfigFile, settings_of
from shardd.cli.output import printable
from shardd.metadata.apply import ApplyError
from shardd.metadata.commands import ChangePassword, Ref, UpdateUser
from shardd.metadata.errors import LogError
from shardd.metadata.offline import OfflineError, OfflineMetadata
from shardd.runtime.password_hash import hash_password
from shardd.server.errors import StartupError

_ROOT: Final = 0
_EXIT_REFUSED: Final = 1
_LEAST, _MOST = 3, 100


def root_password(
    config: ConfigFile = None,
    path: Annotated[Path | None, typer.Option("--path", help="Data directory, instead of system.path.")] = None,
    password_stdin: Annotated[
        bool, typer.Option("--password-stdin", help="Read the password from there; else one is made and printed.")
    ] = False,
) -> None:
    """Give the first user a new password and make it active, when nobody knows the old one. The server must be
    stopped. Exit status 0: done, 1: a server runs or the metadata refuse, 2: no data directory, or no password."""
    directory = path or settings_of(config).system.data_directory
    if not directory.is_dir():
        _end(f"{directory} is not a directory", EXIT_USAGE)
    password = sys.stdin.readline().rstrip("\n") if password_stdin else secrets.token_urlsafe(18)
    if not _LEAST <= len(password.encode("utf-8", "replace")) <= _MOST:
        _end(f"a password has {_LEAST} to {_MOST} bytes", EXIT_USAGE)
    try:
        with locked(directory), OfflineMetadata(directory) as metadata:
            user = metadata.state.users.get(_ROOT)
            if user is None:
                _end(f"{directory} has no first user yet; the first start makes it", EXIT_USAGE)
            ref = Ref(user.id, user.incarnation)
            metadata.submit(ChangePassword(ref, hash_password(password)))
            if not user.active:
                metadata.submit(UpdateUser(ref, None, True))
    except (StartupError, OfflineError, LogError, ApplyError, OSError) as error:
        _end(str(error), _EXIT_REFUSED)
    typer.echo(printable(f"user {user.name} has another password") + ("" if password_stdin else f": {password}"))


def _end(sentence: str, status: int) -> NoReturn:
    typer.echo(printable(f"shardd: {sentence}"), err=True)
    raise typer.Exit(status)
