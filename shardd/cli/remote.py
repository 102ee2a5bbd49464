"""What the commands that ask a server have in common: who is asked, how answers are shown, and how it ends.

Exit status (docs/cli.md): a table of `_STATUS_OF` and below; one sentence on the standard error, never a traceback.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Coroutine, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

from shardd.cli.declared import Command, Family, Option
from shardd.cli.standard import EXIT_FAILED, EXIT_INTERRUPTED, InterruptedExit, awaited
from shardd.cli.standard import EXIT_USAGE as EXIT_USAGE

if TYPE_CHECKING:
    from shardd.client.client import Client
    from shardd.client.settings import Settings

EXIT_NOT_FOUND: Final = 3
EXIT_EXISTS: Final = 4
EXIT_DENIED: Final = 5
EXIT_NO_SERVER: Final = 6


_U32_MAX: Final = (1 << 32) - 1
_U64_MAX: Final = (1 << 64) - 1


class Format(StrEnum):
    """How answers are shown."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"


class CommandError(Exception):
    """Why a command ends: a sentence and the exit status."""

    def __init__(self, sentence: str, status: int = EXIT_FAILED) -> None:
        super().__init__(sentence)
        self.status = status


Url = Annotated[str | None, Option("--url", about="shardd://name:password@host:port, or SHARDD_URL.")]
Context = Annotated[str | None, Option("--context", "-C", about="A saved server, or SHARDD_CONTEXT.")]
Output = Annotated[Format, Option("--output", "-o", about="For people, or for programs.")]
Yes = Annotated[bool, Option("--yes", "-y", about="Do not ask.")]
DryRun = Annotated[bool, Option("--dry-run", about="Only say what would be done.")]


class Remote:
    """A server, and the person or program that asks. `farewell`: what is said when it is interrupted."""

    def __init__(self, client: Client, output: Format) -> None:
        self.client = client
        self.output = output
        self.farewell: Callable[[], str] = lambda: "interrupted"

    def show(self, rows: Sequence[Any], columns: Sequence[str]) -> None:
        """A list. `columns`: of the table, programs get all fields."""
        from shardd.cli.output import as_table, dumps, plain

        if self.output is Format.TABLE:
            print(as_table([plain(row) for row in rows], columns))
        elif self.output is Format.JSONL:
            sys.stdout.writelines(dumps(plain(row)) + "\n" for row in rows)
        else:
            print(dumps([plain(row) for row in rows]))

    def show_one(self, value: Any) -> None:
        from shardd.cli.output import as_list, dumps, plain

        print(as_list(plain(value)) if self.output is Format.TABLE else dumps(plain(value)))

    def done(self, sentence: str, **facts: Any) -> None:
        """What was changed, as a sentence or as facts."""
        from shardd.cli.output import dumps, printable

        print(printable(sentence) if self.output is Format.TABLE else dumps(facts))

    def confirm(self, loss: str, *, yes: bool) -> None:
        """Asks whether something may be lost. CommandError without an answer, or when it is no."""
        if yes:
            return
        if not sys.stdin.isatty():
            raise CommandError(f"{loss} Say --yes when that is meant.", EXIT_USAGE)
        import typer  # a person types

        from shardd.cli.output import printable

        try:
            meant = typer.confirm(f"{printable(loss)} Go on?", err=True)
        except typer.Abort:
            raise CommandError("interrupted", EXIT_INTERRUPTED) from None
        if not meant:
            raise CommandError("nothing was changed")


def asked(question: str, *, hidden: bool = False) -> str:
    """What a person types. CommandError."""
    import typer

    try:
        return str(typer.prompt(question, hide_input=hidden, err=True))
    except typer.Abort:
        raise CommandError("interrupted", EXIT_INTERRUPTED) from None


def _fits(values: dict[str, Any]) -> None:
    """Ends the process for a number that no field of the protocol holds."""
    for name, value in values.items():
        most = _U64_MAX if name in ("offset", "to_offset", "count") else _U32_MAX
        for each in value if isinstance(value, list) else [value]:
            if type(each) is int and not -most <= each <= most:
                end(f"{name} {str(each)[:30]} is too large, at most {most}", EXIT_USAGE)


Work = Callable[..., Coroutine[Any, Any, None]]


def remote(
    family: Family, name: str, *, output: bool = True, reads: bool | Callable[[dict[str, Any]], bool] = False
) -> Callable[[Work], Work]:
    """Registers `async def command(remote, ...)`; it gets the options that say which server, and `--output`.
    `reads`: it changes nothing (with these values), so digits may be an id."""
    common: tuple[tuple[str, Any, Any], ...] = (("context", Context, None), ("url", Url, None))
    if output:
        common += (("output", Output, Format.TABLE),)

    def register(work: Work) -> Work:
        def run(**values: Any) -> None:
            shown = values.pop("output") if output else Format.TABLE
            _fits(values)
            only_reads = reads(values) if callable(reads) else reads
            carry_out(work, values.pop("url"), values.pop("context"), shown, values, reads=only_reads)

        family.commands[name] = Command(work, run, 1, common)
        return work

    return register


def carry_out(
    work: Callable[..., Coroutine[Any, Any, None]],
    url: str | Settings | None,
    context: str | None,
    output: Format,
    values: dict[str, Any],
    *,
    reads: bool = False,
) -> None:
    """With a connected client. Ends the process with the status of what went wrong."""
    from shardd.cli.identity import read_digits
    from shardd.client.client import Client
    from shardd.client.errors import ClientError

    made: list[Remote] = []

    async def connected() -> None:
        settings = chosen_settings(url, context) if url is None or isinstance(url, str) else url
        async with Client(settings=settings) as client:
            made.append(Remote(client, output))
            try:
                await client.connect(0.0)
                if reads:
                    await read_digits(client, values)
                await work(made[0], **values)
            except ClientError as error:
                raise await explained(client, error, values) from None

    try:
        awaited(connected())
    except KeyboardInterrupt:
        end(made[0].farewell() if made else "interrupted", EXIT_INTERRUPTED)
    except CommandError as error:
        end(str(error), error.status)
    except ClientError as error:  # settings
        end(str(error), EXIT_USAGE)
    except UnicodeEncodeError as error:
        end(f"{error.object!r} is not UTF-8; names and values of the server are", EXIT_USAGE)


def chosen_settings(url: str | None, context: str | None) -> Settings:
    """What is given on the command line goes before the environment. SettingsError."""
    from shardd.client.settings import resolve

    if context and not url:
        environment = {key: value for key, value in os.environ.items() if key != "SHARDD_URL"}
        return resolve(None, environment | {"SHARDD_CONTEXT": context})
    return resolve(url)


async def explained(client: Client, error: Any, values: dict[str, Any]) -> CommandError:
    """The sentence and the status of what went wrong."""
    from shardd.client import errors

    address = client.settings.address
    match error:
        case errors.AuthenticationError() if not (client.settings.username or client.settings.token):
            return CommandError(f"{address} wants a login: say who asks with `shardd login` or SHARDD_URL", EXIT_DENIED)
        case errors.AuthenticationError():
            return CommandError(f"{address} refuses the login (status {error.status})", EXIT_DENIED)
        case errors.RightNeededError() | errors.GroupDeletedError():
            status = EXIT_DENIED if isinstance(error, errors.RightNeededError) else EXIT_NOT_FOUND
            return CommandError(str(error), status)
        case errors.PermissionDeniedError():
            return CommandError("this user may not do that", EXIT_DENIED)
        case errors.NotFoundError():
            from shardd.cli.names import missing

            return CommandError(await missing(client, error, values), EXIT_NOT_FOUND)
        case errors.AlreadyExistsError():
            return CommandError(f"there is one of that name already (status {error.status})", EXIT_EXISTS)
        case errors.UnavailableError() | errors.ConnectionLostError() | errors.DeadlineError():
            # of asyncio: "[Errno 111] Connect call failed ('127.0.0.1', 1)"
            found = re.search(r"\[Errno (\d+)\].*", str(error))
            sentence = str(error) if found is None else str(error).replace(found[0], os.strerror(int(found[1])))
            return CommandError(sentence, EXIT_NO_SERVER)
        case errors.TlsError():
            return CommandError(str(error), EXIT_NO_SERVER)
        case errors.SettingsError():
            return CommandError(str(error), EXIT_USAGE)
    return CommandError(str(error), EXIT_FAILED)


def end(sentence: str, status: int) -> NoReturn:
    from shardd.cli.output import printable

    print(f"shardd: {printable(sentence)}", file=sys.stderr)
    raise InterruptedExit if status == EXIT_INTERRUPTED else SystemExit(status)
