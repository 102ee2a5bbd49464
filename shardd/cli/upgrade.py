"""`shardd upgrade check`: what this program would make of a data directory, and who could not go back."""

from __future__ import annotations

import time
import tomllib
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from shardd import __version__
from shardd.cli.options import ConfigFile, loaded_of
from shardd.cli.output import printable
from shardd.config.hosts import is_of_this_host
from shardd.config.http import Http
from shardd.config.loader import Loaded
from shardd.config.metrics import Metrics
from shardd.engine import _native
from shardd.log import layout
from shardd.log.diagnosis import partitions_below
from shardd.log.directory_info import FORMAT_VERSION, DirectoryInfo, read_info
from shardd.log.imported import read_imported
from shardd.log.incarnation import read_incarnation
from shardd.log.manifest import DamagedManifestError, UnknownManifestError, read_manifest
from shardd.log.marker import UnknownMarkerError
from shardd.log.offsets_table import VERSION
from shardd.log.segment_reader import segment_starts
from shardd.log.segment_recovery import proven_incarnation
from shardd.log.side_diagnosis import UNUSABLE_OFFSETS
from shardd.log.stored_offsets import UnusableTableError, read_settled_table
from shardd.maintenance.retention_limits import RetentionLimits
from shardd.maintenance.retention_preview import preview_held
from shardd.metadata.diagnosis import diagnose_state
from shardd.metadata.errors import LogError
from shardd.metadata.load import load_state
from shardd.metadata.log_file import FILE_NAME
from shardd.migration.iggy_files import file_of_a_later_server, iggy_log
from shardd.runtime.regular_files import read_regular
from shardd.runtime.throttle import Throttle
from shardd.server.data_directory import RUNTIME_CONFIG_NAME

EXIT_REFUSED: Final = 1
EXIT_USAGE: Final = 2
_NAMED_MAX: Final = 8
upgrade_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@upgrade_app.callback()
def upgrade() -> None:
    """From one version of this program to another one."""


class Findings(msgspec.Struct):
    """One sentence each. `refused`: what this program does not open; `back`: what earlier programs would not."""

    would: list[str] = msgspec.field(default_factory=list)
    refused: list[str] = msgspec.field(default_factory=list)
    back: list[str] = msgspec.field(default_factory=list)


@upgrade_app.command("check")
def check(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A data directory.")], config: ConfigFile = None
) -> None:
    """Say what version a data directory has, what this program would do with it, and what stands in the way back.

    It judges by the settings that `shardd serve` would have, and says where they come from. It changes nothing and
    needs no lock. Exit status 0: all of it opens, 1: something does not, 2: no directory, or the settings are wrong."""
    loaded = loaded_of(config, directory)
    if not directory.is_dir():
        typer.echo(printable(f"shardd: {directory} is no directory"), err=True)
        raise typer.Exit(EXIT_USAGE)
    try:
        findings = examine(directory, loaded)
    except OSError as error:
        typer.echo(printable(f"shardd: {directory} cannot be read: {error}"), err=True)
        raise typer.Exit(EXIT_USAGE) from None
    typer.echo(printable(f"this program: shardd {__version__}, format version {FORMAT_VERSION}"))
    typer.echo(_origins(loaded))
    for title, sentences in (("", findings.would), ("refused: ", findings.refused), ("no way back: ", findings.back)):
        for sentence in sentences:
            typer.echo(printable(f"{title}{sentence}"))
    if findings.refused:
        raise typer.Exit(EXIT_REFUSED)


def examine(directory: Path, loaded: Loaded) -> Findings:
    """Reads only. OSError."""
    findings = Findings()
    try:
        info = read_info(directory)
    except ValueError as error:  # nothing else in it means anything then
        findings.refused.append(str(error))
        return findings
    if info is None:
        _without_info(directory, findings)
        return findings
    _about_version(info, findings)
    findings.refused += diagnose_state(directory).damage
    _about_partitions(directory, findings)
    _about_settings(directory, loaded, findings)
    _about_hosts(directory, loaded, findings)
    return findings


def _given(loaded: Loaded) -> dict[str, str]:
    """Key path -> origin of each setting that is not a default; the directory is the argument of the command."""
    return {path: origin for path, origin in loaded.origins.items() if origin not in ("default", "command line")}


def _origins(loaded: Loaded) -> str:
    origins = sorted(set(_given(loaded).values()))
    if not origins:
        return "settings: the defaults; neither a file (--config, SHARDD_CONFIG_PATH) nor a variable gives others"
    named = ", ".join(origins[:_NAMED_MAX]) + (" ..." if len(origins) > _NAMED_MAX else "")
    return f"settings: those of {named}, and the defaults"


def _without_info(directory: Path, findings: Findings) -> None:
    if file_of_a_later_server(directory) is not None:
        findings.refused.append(
            f"{directory} is of Apache Iggy 0.9 or later: only a directory of 0.8 can be taken over"
        )
    elif iggy_log(directory).exists():
        findings.would.append("a directory of Apache Iggy: the first start imports it, or refuses it with a sentence")
        findings.back.append("Apache Iggy does not read the directory once it is imported; keep a copy")
    elif (directory / FILE_NAME).exists() or next(partitions_below(directory), None) is not None:
        findings.refused.append(f"{directory} has no info.json, but data: a restore or an import did not end")
    else:
        findings.would.append(f"no data: the first start makes a directory of format version {FORMAT_VERSION}")


def _about_version(info: DirectoryInfo, findings: Findings) -> None:
    text = f"directory: format version {info.format_version}, made {info.created_at}"
    if info.format_version == FORMAT_VERSION:
        findings.would.append(f"{text}; a start changes no version")
        findings.back.append(f"programs that know only format version {FORMAT_VERSION - 1} and earlier refuse it")
    else:
        findings.would.append(f"{text}; the first start makes it version {FORMAT_VERSION}, no file is converted")
        findings.back.append(
            f"after the first start programs that know only format version {info.format_version} refuse it; until then "
            "they open it: make a backup, or keep a copy"
        )


class _Counts(msgspec.Struct):
    """Of all partitions. `early`: tables of stored offsets that a start writes anew."""

    partitions: int = 0
    segments: int = 0
    compressed: int = 0
    sparse: int = 0
    damaged: int = 0
    early: int = 0


def _about_partitions(directory: Path, findings: Findings) -> None:
    counts = _Counts()
    for place, path in partitions_below(directory):
        refusals: list[str] = []
        try:
            starts = segment_starts(path)
        except FileNotFoundError:  # the partition was deleted meanwhile
            continue
        except UnknownManifestError as error:
            starts = []
            refusals.append(str(error))
        sides = _sides(path)
        refusals += sides.refusals
        findings.would += sides.costs
        refusals += _about_segments(path, starts, counts)
        counts.partitions += 1
        counts.early += sides.has_early_table and not sides.refusals
        stays = "its partition stays closed, nothing in it is changed"
        findings.refused += [f"partition {'/'.join(map(str, place))}: {each}; {stays}" for each in refusals]
    findings.would.append(f"partitions {counts.partitions}, segments {counts.segments}")
    if counts.damaged:
        findings.would.append(
            f"manifests {counts.damaged} are damaged or cannot be read: their logs are scanned, nothing is lost"
        )
    if counts.early:
        findings.would.append(
            f"tables of stored offsets {counts.early} have version 1: the first start writes version 2"
        )
        findings.back.append("after that start programs that know only version 1 of them keep those partitions closed")
    for count, kind in ((counts.compressed, "compressed"), (counts.sparse, "sparse (offsets without a record)")):
        if count:
            findings.back.append(f"segments {count} are {kind}: programs without them keep their partitions closed")


def _about_segments(partition: Path, starts: list[int], counts: _Counts) -> list[str]:
    """Which of them this program does not open."""
    refusals = []
    for start in starts:
        counts.segments += 1
        try:
            manifest = read_manifest(partition, start)
        except DamagedManifestError:  # or one that the device does not give
            counts.damaged += 1
        except UnknownManifestError as error:
            refusals.append(str(error))
        else:
            counts.compressed += manifest is not None and manifest.stored is not None
            counts.sparse += manifest is not None and manifest.sparse
    return refusals


class _Sides(msgspec.Struct):
    """What lies beside the log of a partition. `refusals`: why it is not opened; `costs`: what cannot be read and
    closes no partition; `has_early_table`: of stored offsets, which a start writes anew."""

    refusals: list[str] = msgspec.field(default_factory=list)
    costs: list[str] = msgspec.field(default_factory=list)
    has_early_table: bool = False


def _sides(partition: Path) -> _Sides:
    """Reads each file once."""
    sides = _Sides()
    incarnation = None
    try:
        incarnation = read_incarnation(partition)
    except UnknownMarkerError as error:
        sides.refusals.append(str(error))
    except OSError as error:
        incarnation = proven_incarnation(partition)
        if incarnation is None:
            text = f"{error}, and no manifest tells the incarnation: `shardd doctor log` says the way out"
            sides.refusals.append(text)
        else:
            _add_unread(sides, error)
    try:
        read_imported(partition)
    except UnknownMarkerError as error:
        sides.refusals.append(str(error))
    except (OSError, ValueError) as error:
        _add_unread(sides, error)
    _about_table(partition, incarnation, sides)
    try:
        read_regular(partition / layout.PRODUCERS, _native.PRODUCERS_FILE_READ_MAX)
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        _add_unread(sides, error)
    return sides


def _about_table(partition: Path, incarnation: int | None, sides: _Sides) -> None:
    """A table that cannot be told costs stored offsets; something else in its place closes the partition."""
    try:
        table = read_settled_table(partition, incarnation)
        sides.has_early_table = table is not None and table.counts and table.version != VERSION
    except UnusableTableError as error:
        sides.costs.append(f"{error}: {UNUSABLE_OFFSETS}")
    except OSError as error:
        _add_unread(sides, error)
    except ValueError as error:
        sides.refusals.append(str(error))


def _add_unread(sides: _Sides, error: OSError | ValueError) -> None:
    """Adds a file beside the log that cannot be read: its partition is opened without it."""
    sides.costs.append(f"{error}: `shardd doctor log` says what that costs, and the way out")


def _about_settings(directory: Path, loaded: Loaded, findings: Findings) -> None:
    if findings.refused:
        return
    try:
        state = load_state(directory / FILE_NAME)
    except LogError:
        return  # a running server cut its log between two reads, more than once
    now_us = time.time_ns() // 1000
    held = preview_held(directory, state, RetentionLimits(loaded.settings), now_us, Throttle())
    if held:
        findings.would.append(
            f"topics {len(held)} let stored offsets hold messages beyond size or count until size_held_max is set; "
            "then at most this would go: "
            f"{', '.join(map(str, held[:_NAMED_MAX]))}{' ...' if len(held) > _NAMED_MAX else ''}"
        )
    topics = sum(bool(topic.settings) for stream in state.streams.values() for topic in stream.topics.values())
    if topics:
        findings.back.append(f"topics {topics} have settings of their own: programs without them do not start")


def _about_hosts(directory: Path, loaded: Loaded, findings: Findings) -> None:
    """Earlier programs answered requests of HTTP by whatever name. What is not given, the last server tells."""
    settings, given = loaded.settings, _given(loaded)
    path = directory / settings.system.runtime_path / RUNTIME_CONFIG_NAME
    try:
        last = tomllib.loads(path.read_text())
    except FileNotFoundError:
        last = None
    for section, door in (("http", settings.http), ("metrics", settings.metrics)):
        if door.allowed_hosts or (last is not None and "allowed_hosts" in last[section]):
            continue
        bound = f"where {section}.address is"
        if last is not None or any(each.startswith(f"{section}.") for each in given):
            enabled, address = _door(section, door, given, {} if last is None else last[section])
            if not enabled or not is_of_this_host(address):
                continue
            bound = f"{section}.address is {address},"
        findings.would.append(
            f"{bound} of this host alone: requests with another Host than localhost, its addresses or names of the "
            f"certificate get 421 until {section}.allowed_hosts lists it (a proxy on this host that passes the "
            "public name)"
        )


def _door(section: str, door: Http | Metrics, given: dict[str, str], last: dict[str, Any]) -> tuple[bool, str]:
    """Whether it is enabled, and its address: as given, else as the last server had it, else the default."""
    enabled = door.enabled if f"{section}.enabled" in given else last.get("enabled", door.enabled)
    return enabled, door.address if f"{section}.address" in given else last.get("address", door.address)
