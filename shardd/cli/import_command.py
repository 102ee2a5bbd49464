"""`shardd import`: data of other servers, into a directory that no server uses at the moment."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import msgspec
import typer

from shardd.cli.offline import ensure_root, locked
from shardd.cli.options import EXIT_USAGE, ConfigFile, DataDirectory, settings_of
from shardd.cli.output import harmless, printable, size_text
from shardd.metadata.apply import ApplyError
from shardd.metadata.errors import LogError
from shardd.metadata.offline import OfflineError, OfflineMetadata
from shardd.migration.errors import MigrationError
from shardd.server.errors import StartupError

if TYPE_CHECKING:
    from shardd.migration.liftbridge.report import ImportReport, StreamReport

EXIT_REFUSED: Final = 1  # nothing was imported
EXIT_LEFT_OUT: Final = 3  # imported, but for some streams
_LEFT_OUT: Final = "left out"
_PROGRESS_S: Final = 1.0
_MODULES: Final = ("cryptography", "google.protobuf", "google_crc32c")

import_app = typer.Typer(help="Import data of other servers.", rich_markup_mode=None, no_args_is_help=True)


@import_app.callback()
def import_() -> None:
    """Import data of other servers. (A directory of Apache Iggy 0.8 is imported by the start of the server.)"""


@import_app.command("liftbridge")
def liftbridge(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="The data directory of a stopped Liftbridge server.")
    ],
    config: ConfigFile = None,
    data: DataDirectory = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", help="The native stream, instead of liftbridge.namespace.")
    ] = None,
    only: Annotated[list[str] | None, typer.Option("--stream", help="Only this one; several times.")] = None,
    subject: Annotated[
        list[str] | None, typer.Option("--subject", metavar="STREAM=SUBJECT", help="Its subject; several times.")
    ] = None,
    rename: Annotated[
        list[str] | None, typer.Option("--rename", metavar="STREAM=NAME", help="Another name; several times.")
    ] = None,
    plain: Annotated[
        list[str] | None, typer.Option("--plain", metavar="STREAM", help="Not encrypted, whatever it looks like.")
    ] = None,
    salvage: Annotated[
        bool, typer.Option("--salvage", help="Of damaged partitions take what is whole; the rest becomes gaps.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Read and check everything, write nothing.")] = False,
    with_default_root_credentials: Annotated[
        bool, typer.Option("--with-default-root-credentials", help="First user iggy with password iggy.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of lines.")] = False,
) -> None:
    """Import streams of Liftbridge with their offsets, keys, headers and cursors; no server runs on either directory.

    What was interrupted goes on with the same command. Values that are encrypted need LIFTBRIDGE_ENCRYPTION_KEY.
    Exit status 0: all streams are imported, 1: nothing is, 2: wrong settings, 3: some streams were left out.
    """
    missing = [name for name in _MODULES if find_spec(name) is None]
    if missing:
        _fail(f'{", ".join(missing)} cannot be imported; pip install "shardd[liftbridge]"', EXIT_USAGE)
    from shardd.migration.liftbridge.importer import LiftbridgeImport
    from shardd.migration.liftbridge.report import ImportOptions
    from shardd.migration.liftbridge.values import master_key

    settings = settings_of(config, data)
    options = ImportOptions(
        namespace=namespace or settings.liftbridge.namespace,
        segment_bytes_max=settings.system.segment_size_bytes,
        subjects=_pairs("--subject", subject),
        names=_pairs("--rename", rename),
        only=frozenset(only or ()),
        plain=frozenset(plain or ()),
        salvage=salvage,
        dry_run=dry_run,
    )
    target = settings.system.data_directory
    try:
        run = LiftbridgeImport(directory, target, options, master_key(os.environ), _progress(as_json)).run
        if dry_run:
            report = run()
        else:
            with locked(target):
                _first_user(target, with_default_root_credentials)
                report = run()
    except (MigrationError, StartupError, OfflineError, LogError, ApplyError, ValueError) as error:
        _fail(str(error), EXIT_REFUSED)
    except OSError as error:
        _fail(f"{error.filename or directory}: {error.strerror}; the same command goes on from here", EXIT_REFUSED)
    typer.echo(harmless(msgspec.json.encode(report).decode()) if as_json else _lines(report))
    if report.left_out:
        raise typer.Exit(EXIT_LEFT_OUT)


def _first_user(data: Path, default_credentials: bool) -> None:
    with OfflineMetadata(data) as metadata:
        ensure_root(metadata, os.environ, default_credentials=default_credentials)


def _pairs(option: str, given: list[str] | None) -> dict[str, str]:
    found = {}
    for each in given or ():
        name, separator, value = each.partition("=")
        if not name or not separator or not value:
            _fail(f"{option}: {each!r} is no STREAM=VALUE", EXIT_USAGE)
        found[name] = value
    return found


def _fail(sentence: str, status: int) -> NoReturn:
    typer.echo(printable(f"shardd: {sentence}"), err=True)
    raise typer.Exit(status)


def _progress(as_json: bool) -> Callable[[str, int, int], None]:
    """A line on a terminal once a second."""
    shown_at = time.monotonic()

    def show(partition: str, read_bytes: int, all_bytes: int) -> None:
        nonlocal shown_at
        now = time.monotonic()
        if now - shown_at < _PROGRESS_S or not sys.stderr.isatty():
            return
        shown_at = now
        share = read_bytes / max(all_bytes, 1)
        sys.stderr.write(f"{share:6.1%}  {size_text(read_bytes)} of {size_text(all_bytes)}  {printable(partition)}\n")

    return show


def _lines(report: ImportReport) -> str:
    lines = []
    for stream in report.streams:
        lines.append(_line(stream))
        for figures in stream.partitions:
            lines += [f"  damage: {each.kind}: {each.about} (offset {each.offset})" for each in figures.damage]
    kept = sum(stream.outcome != _LEFT_OUT for stream in report.streams)
    verb = "would be imported" if report.dry_run else "imported"
    messages = sum(stream.messages for stream in report.streams)
    lines.append(f"streams {verb}: {kept}, messages {messages}; left out: {len(report.left_out)}")
    return "\n".join(map(printable, lines))


def _line(stream: StreamReport) -> str:
    name = stream.source if stream.name == stream.source else f"{stream.source} as {stream.name}"
    if stream.outcome == _LEFT_OUT:
        return f"{name}: left out: {stream.why}"
    figures = stream.partitions
    about = [
        f"partitions {len(figures)}",
        f"messages {stream.messages}",
        f"subject {stream.subject} ({stream.subject_from})",
    ]
    for text, count in (
        ("offsets without a message", sum(each.absent for each in figures)),
        ("behind the saved high watermark", sum(each.uncommitted for each in figures)),
        ("bytes of a torn tail", sum(each.torn_bytes for each in figures)),
        ("partitions decrypted", sum(each.encrypted for each in figures)),
    ):
        if count:
            about.append(f"{text} {count}")
    return f"{name}: {', '.join(about)}"
