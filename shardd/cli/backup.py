"""`shardd backup`: make, list, check and restore backups of a data directory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import msgspec
import typer

from shardd.backup.backups_directory import complete_backups
from shardd.backup.create import Made, Options, create_backup
from shardd.backup.format import COPIED, LINKED, SHARED, Backup, BackupError, read_backup
from shardd.backup.metadata import incarnations
from shardd.backup.priority import FULL_SPEED
from shardd.backup.restore import restore_backup
from shardd.backup.verify import verify_backup
from shardd.cli.options import EXIT_USAGE, ConfigFile, DataDirectory, settings_of
from shardd.cli.output import harmless, printable
from shardd.client import commands
from shardd.client.blocking import BlockingLink
from shardd.client.errors import ClientError, NotFoundError
from shardd.client.transport import way_to
from shardd.config.units import parse_size_bytes
from shardd.log.file_modes import made_like
from shardd.metadata.apply import ApplyError
from shardd.metadata.errors import LogError
from shardd.metadata.load import load_state
from shardd.metadata.log_file import FILE_NAME
from shardd.observability.traces import end_traces, set_up_traces
from shardd.runtime import tracing

EXIT_REFUSED: Final = 1  # not made, not restored, damaged
EXIT_LEFT_OUT: Final = 3  # a whole backup, but partitions of the server are not in it

backup_app = typer.Typer(
    help="Make, list, check and restore backups of a data directory.", rich_markup_mode=None, no_args_is_help=True
)
Json = Annotated[bool, typer.Option("--json", help="One JSON object instead of lines.")]
Rate = Annotated[
    str,
    typer.Option("--rate-bytes-per-second", help='Reads at most so much, a number or "64 MiB"; 0: no limit.'),
]
FullSpeed = Annotated[  # start.py looks for it before anything is imported
    bool, typer.Option(FULL_SPEED, help="Do not give way: ten times as fast, and producers wait longer.")
]


@backup_app.command()
def create(
    directory: Annotated[Path, typer.Argument(help="Takes the backups, each under its time.")],
    config: ConfigFile = None,
    data: DataDirectory = None,
    base: Annotated[Path | None, typer.Option("--base", help="Shares segments with this one, not the newest.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Shares with no earlier backup.")] = False,
    rate: Rate = "0",
    full_speed: FullSpeed = False,
    flush: Annotated[
        str | None, typer.Option("--flush", metavar="HOST:PORT", help="Let this server write its journals first.")
    ] = None,
    username: Annotated[str, typer.Option("--username", "-u", envvar="SHARDD_USERNAME", help="For --flush.")] = "iggy",
    password: Annotated[str, typer.Option("--password", "-p", envvar="SHARDD_PASSWORD", help="For --flush.")] = "iggy",
    as_json: Json = False,
) -> None:
    """Make a backup beside a running or stopped server. Exit status 0: made, 1: not made, 2: wrong settings,
    3: made, but partitions had to be left out."""
    source = _data_directory(config, data)
    if full and base is not None:
        _fail("--base and --full exclude each other", EXIT_USAGE)
    options = Options(base, full, _rate(rate))
    flushing = (lambda: None) if flush is None else _flusher(flush, username, password, source)
    try:
        with tracing.span("backup"), made_like(directory):
            made = create_backup(source, directory, options, flushing)
    except (BackupError, ClientError) as error:
        _fail(str(error), EXIT_REFUSED)
    finally:
        end_traces()
    _print_made(made, as_json)
    if made.backup.left_out:
        raise typer.Exit(EXIT_LEFT_OUT)


@backup_app.command()
def verify(
    backup: Annotated[Path, typer.Argument(help="One backup: DIR/<time>.")],
    rate: Rate = "0",
    full_speed: FullSpeed = False,
    as_json: Json = False,
) -> None:
    """Read a whole backup and check everything. Exit status 0: whole, 1: damaged or no backup, 3: whole, but without
    the partitions that were left out."""
    try:
        verified = verify_backup(backup, _rate(rate))
    except BackupError as error:
        _fail(str(error), EXIT_REFUSED)
    if as_json:
        _print_json({**_figures(backup, verified.backup), "damage": verified.damage})
    else:
        typer.echo(_line(backup, verified.backup))
        _warn(verified.backup)
        for sentence in verified.damage:
            typer.echo(f"damage: {printable(sentence)}")
        typer.echo("damaged" if verified.damage else "whole")
    if verified.damage:
        raise typer.Exit(EXIT_REFUSED)
    if verified.backup.left_out:
        raise typer.Exit(EXIT_LEFT_OUT)


@backup_app.command()
def restore(
    backup: Annotated[Path, typer.Argument(help="One backup: DIR/<time>.")],
    data: Annotated[Path, typer.Argument(help="Becomes the data directory; empty or missing.")],
    link: Annotated[
        bool, typer.Option("--link", help="Sealed segments become second names of the backup's files.")
    ] = False,
    rate: Rate = "0",
    as_json: Json = False,
) -> None:
    """Make a data directory of a backup, checking every byte. Exit status 0: made, 1: not made, nothing is left,
    3: made, but without the partitions that were left out."""
    try:
        with made_like(data):
            restored = restore_backup(backup, data, link=link, bytes_per_second=_rate(rate))
    except BackupError as error:
        _fail(str(error), EXIT_REFUSED)
    if as_json:
        _print_json({**_figures(backup, restored), "data": str(data)})
    else:
        typer.echo(printable(f"restored to {data}: {_line(backup, restored)}"))
        typer.echo("a new history begins: whoever remembers the old one (Spark, archives) is told by an error")
        _warn(restored)
    if restored.left_out:
        raise typer.Exit(EXIT_LEFT_OUT)


@backup_app.command("list")
def list_backups(
    directory: Annotated[Path, typer.Argument(help="What `create` was given.")], as_json: Json = False
) -> None:
    """Show the complete backups of a directory, oldest first. Exit status 0, 1: one cannot be read."""
    try:
        paths = complete_backups(directory)
    except OSError as error:
        _fail(f"{directory} cannot be read: {error.strerror}", EXIT_USAGE)
    found: list[tuple[Path, Backup]] = []
    damage: list[str] = []
    for path in paths:
        try:
            found.append((path, read_backup(path)))
        except BackupError as error:
            damage.append(str(error))
    if as_json:
        _print_json({"backups": [_figures(path, backup) for path, backup in found], "damage": damage})
    else:
        for path, backup in found:
            typer.echo(_line(path, backup))
        for sentence in damage:
            typer.echo(f"damage: {printable(sentence)}")
    if damage:
        raise typer.Exit(EXIT_REFUSED)


# ---- settings ----


def _fail(sentence: str, status: int) -> NoReturn:
    typer.echo(f"shardd: {printable(sentence)}", err=True)
    raise typer.Exit(status)


def _data_directory(config: Path | None, data: Path | None) -> Path:
    """A command that is given the settings is traced as they say."""
    if data is not None and config is None:
        return data
    settings = settings_of(config)
    set_up_traces(settings.telemetry, "backup")
    return data or settings.system.data_directory


def _rate(text: str) -> int:
    try:
        return parse_size_bytes(text)
    except ValueError as error:
        _fail(f"--rate-bytes-per-second: {error}", EXIT_USAGE)


def _flusher(address: str, username: str, password: str, data: Path) -> Callable[[], None]:
    """Asks the server to write what level `memory` keeps in journals, for every partition of the metadata."""

    def flush() -> None:
        try:
            state = load_state(data / FILE_NAME)
        except (LogError, ApplyError) as error:
            raise BackupError(str(error)) from error
        with BlockingLink(way_to(address, username, password)) as link:
            for place in incarnations(state):
                with suppress(NotFoundError):
                    link.call(commands.flush(*place, fsync=False))

    return flush


# ---- output ----


def _figures(path: Path, backup: Backup) -> dict[str, Any]:
    segments = [segment for partition in backup.partitions for segment in partition.segments]
    kept = {
        kind: {
            "segments": sum(segment.kept == kind for segment in segments),
            "bytes": sum(segment.bytes for segment in segments if segment.kept == kind),
        }
        for kind in (LINKED, COPIED, SHARED)
    }
    return {
        "path": str(path),
        "began_at": backup.began_at,
        "ended_at": backup.ended_at,
        "base": backup.base,
        "metadata_index": backup.metadata.index,
        "partitions": len(backup.partitions),
        "messages": sum(segment.end_offset - segment.start_offset for segment in segments),
        "bytes": sum(segment.bytes for segment in segments),
        **kept,
        "left_out": backup.left_out,
        "warnings": backup.warnings,
    }


def _line(path: Path, backup: Backup) -> str:
    figures = _figures(path, backup)
    kept = ", ".join(f"{kind} {figures[kind]['segments']}" for kind in (LINKED, COPIED, SHARED))
    base = f", base {backup.base}" if backup.base else ""
    return (
        f"{path}: {figures['partitions']} partitions, {figures['messages']} messages, {figures['bytes']} bytes, "
        f"metadata up to record {figures['metadata_index']}; segments: {kept}{base}"
    )


def _warn(backup: Backup) -> None:
    for sentence in backup.warnings:
        typer.echo(f"warning: {printable(sentence)}", err=True)
    for sentence in backup.left_out:
        typer.echo(f"left out: {printable(sentence)}", err=True)


def _print_made(made: Made, as_json: bool) -> None:
    if as_json:
        _print_json({**_figures(made.path, made.backup), "removed": [str(path) for path in made.removed]})
        return
    for path in made.removed:
        typer.echo(printable(f"removed {path}, which a killed run had left"))
    typer.echo(_line(made.path, made.backup))
    _warn(made.backup)


def _print_json(value: object) -> None:
    typer.echo(harmless(msgspec.json.encode(value).decode()))
