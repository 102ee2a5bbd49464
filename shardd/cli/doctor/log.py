"""`shardd doctor log`: reads all logs and all stored offsets of a data directory, lists the damage, and isolates it
on request."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Annotated, NoReturn

import msgspec
import typer

from shardd.cli.doctor.state import EXIT_DAMAGE
from shardd.cli.options import EXIT_USAGE, ConfigFile, settings_of
from shardd.cli.output import printable
from shardd.log.damage import DamagedRange
from shardd.log.diagnosis import LOOKS_MAX, ReplacedError, SegmentView, diagnose_partition, isolate, partitions_below
from shardd.log.directory_info import UnknownFormatError, check_format
from shardd.log.incarnation import read_incarnation
from shardd.log.layout import PartitionIds
from shardd.log.removed_segments import removed_files
from shardd.log.side_diagnosis import SideView, diagnose_sides, repair_offsets
from shardd.server.data_directory import lock_directory
from shardd.server.errors import StartupError

Filter = Annotated[int | None, typer.Option(help="Only this id.")]


def log(
    data: Annotated[Path | None, typer.Argument(help="Data directory, instead of system.path.")] = None,
    config: ConfigFile = None,
    stream: Filter = None,
    topic: Filter = None,
    partition: Filter = None,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Isolate what is damaged: polls pass over it from the next start on; drop damaged stored offsets.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --repair: do not ask.")] = False,
) -> None:
    """Read every segment and list it with what is damaged. Without --repair it changes nothing and may look while a
    server runs. Exit status 0: whole or isolated, 1: damaged, 2: nothing to look at, or the directory is in use."""
    directory = data or settings_of(config).system.data_directory
    if not directory.is_dir():
        _fail(f"{directory} is no directory")
    try:
        check_format(directory)
    except UnknownFormatError as error:
        _fail(str(error))
    lock = -1
    if repair:
        try:
            lock = lock_directory(directory, wait_s=0)
        except StartupError as error:
            _fail(str(error))
    try:
        wanted = (stream, topic, partition)
        damaged, offsets, failures = _list(directory, wanted)
        if (damaged or offsets) and repair:
            failures += _repair(damaged, offsets, yes=yes)
            damaged, offsets = {}, []
    finally:
        if lock >= 0:
            os.close(lock)
    if damaged or offsets or failures:
        raise typer.Exit(EXIT_DAMAGE)


def _fail(sentence: str) -> NoReturn:
    typer.echo(printable(f"shardd: {sentence}"), err=True)
    raise typer.Exit(EXIT_USAGE)


def _list(directory: Path, wanted: tuple[int | None, ...]) -> tuple[dict[Path, list[DamagedRange]], list[Path], int]:
    """Prints all segments; what is damaged and not isolated, by partition, the partitions whose stored offsets are
    damaged, and how many could not be read."""
    damaged: dict[Path, list[DamagedRange]] = {}
    offsets: list[Path] = []
    partitions = segments = failures = 0
    for place, path in partitions_below(directory):
        if any(want is not None and want != number for want, number in zip(wanted, place, strict=True)):
            continue
        found = _look_at(place, path)
        partitions += not found.is_gone
        segments += found.segments
        failures += found.failures
        if found.damaged:
            damaged[path] = found.damaged
        if found.has_damaged_offsets:
            offsets.append(path)
    ranges = [each for found in damaged.values() for each in found]
    messages = sum(each.end - each.start for each in ranges)
    typer.echo(
        f"partitions {partitions}, segments {segments}, damaged ranges {len(ranges)}, messages in them {messages}"
    )
    return damaged, offsets, failures


class _Found(msgspec.Struct):
    """In one partition. `damaged`: what is not isolated; `failures`: what could not be read."""

    segments: int = 0
    failures: int = 0
    damaged: list[DamagedRange] = msgspec.field(default_factory=list)
    has_damaged_offsets: bool = False
    is_gone: bool = False


def _look_at(place: PartitionIds, path: Path) -> _Found:
    """Prints what is there; anew where a running server purges the partition meanwhile."""
    text = "/".join(map(str, place))
    for looks_left in reversed(range(LOOKS_MAX)):
        found = _Found()
        try:
            _look_at_log(text, path, found)
        except ReplacedError:
            found.is_gone = not path.is_dir()
            again = "purged, and is looked at again" if looks_left else "purged"
            change = "deleted or purged" if found.is_gone else again
            typer.echo(printable(f"note: partition {text} has been listed, then {change}"))
            if not found.is_gone:
                continue
        break
    else:
        found = _Found(failures=1)
        typer.echo(
            printable(
                f"damage: partition {text} cannot be read: each of {LOOKS_MAX} looks met a purge; look at it again"
            )
        )
    if not found.is_gone:
        sides = diagnose_sides(path)
        _show_sides(path, sides)
        found.failures += len(sides.unreadable)
        found.has_damaged_offsets = bool(sides.damage)
    return found


def _look_at_log(text: str, path: Path, found: _Found) -> None:
    """ReplacedError."""
    try:
        for view in diagnose_partition(path):
            found.segments += 1
            found.failures += bool(view.unreadable)
            _show(text, view)
            found.damaged += view.open_damage()
    except (OSError, ValueError) as error:
        found.failures += 1
        typer.echo(printable(f"damage: partition {text} cannot be read: {error}"))


def _show(place: str, view: SegmentView) -> None:
    typer.echo(
        f"{place}  {view.start_offset} to {view.end_offset} (exclusive), {view.log_bytes} bytes, {view.manifest}"
    )
    for note in view.notes:
        typer.echo(printable(f"  note: {note}"))
    for start, end in view.isolated:
        typer.echo(printable(f"  isolated: offsets {start} to {end - 1}"))
    for each in view.open_damage():
        typer.echo(printable(f"  damage: {each}"))
    if view.unreadable:
        typer.echo(printable(f"  damage: {view.unreadable}"))


def _show_sides(path: Path, view: SideView) -> None:
    with suppress(OSError, ValueError):  # told with the marker
        for left in removed_files(path, read_incarnation(path)):
            typer.echo(
                printable(f"  note: {left.name} is left of a segment that was removed; the next start removes it")
            )
    for note in view.notes:
        typer.echo(printable(f"  note: {note}"))
    for damage in view.damage + view.unreadable:
        typer.echo(printable(f"  damage: {damage}"))


def _repair(damaged: dict[Path, list[DamagedRange]], offsets: list[Path], *, yes: bool) -> int:
    """How many partitions could not be repaired."""
    if damaged and not yes:
        typer.confirm(
            "Isolate these ranges? Consumers will pass over their messages as if they were not there", abort=True
        )
    if offsets and not yes:
        typer.confirm("Drop the damaged stored offsets? What is whole of them stays", abort=True)
    failures = 0
    for path in offsets:
        try:
            typer.echo(printable(f"written anew: {repair_offsets(path)}"))
        except (OSError, ValueError) as error:
            failures += 1
            typer.echo(printable(f"shardd: {error}"), err=True)
    for path, ranges in damaged.items():
        try:
            for manifest in isolate(path, ranges):
                typer.echo(printable(f"isolated in {manifest}"))
        except (OSError, ValueError) as error:
            failures += 1
            typer.echo(printable(f"shardd: {error}"), err=True)
    return failures
