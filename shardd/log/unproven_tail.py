"""The end of a log as the file of producers has it (native/src/log/producers.h): of a batch that a kill has cut short
nothing stays (unfinished_batch.py), and after a power loss nothing that lies behind what both prove.

At level durable records behind the last sync that was over were never acknowledged. With them the log ends elsewhere
than the file of producers can prove, and all producers of the partition would have to begin a new epoch
(docs/adr/0087-cutting-to-what-is-proven.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from shardd.engine import WithheldRange, _native
from shardd.log import layout
from shardd.log.recovered import Recovered
from shardd.log.segments import Segment, position_of
from shardd.log.tail import cut_torn
from shardd.log.unfinished_batch import is_any_withheld, is_of_boot, unfinished_batch
from shardd.runtime.disk_errors import Trouble, trouble_of
from shardd.runtime.regular_files import read_regular

BYTES_MAX: Final = _native.PRODUCERS_FILE_READ_MAX  # the engine reads no larger file either


def end_by_producers(
    directory: Path,
    incarnation: int,
    boot: bytes,
    segment: Segment,
    again: Callable[[], Segment],
    recovered: Recovered,
) -> Segment:
    """The active segment, whose index fits it, up to there; what is `again` found in it then. What its checkpoint
    covers is never cut, and no other segment. OSError."""
    content = _read(directory, recovered.notes)
    if content is None:
        return segment
    end = segment.next_offset
    first = unfinished_batch(content, incarnation, boot, end)
    what = "a batch that was not stored whole,"
    if first is None:
        first = _native.producers_proven_end(content, incarnation, boot, end, recovered.torn)
        what = "what no sync has proven,"
    if first == end or first < max(segment.start_offset, recovered.durable_end):
        return segment
    position = position_of(directory, segment, first)
    whole = replace(segment, log_bytes=position, count=first - segment.start_offset, file_bytes=segment.log_bytes)
    cut_torn(directory, whole, f"offset {first} begins {what}", recovered)
    return segment if recovered.state else again()


def _read(directory: Path, notes: list[str]) -> bytes | None:
    """The file; None without one that can be read: the log is what its records say then, and the engine goes on without
    the file only once that has another name. OSError, of what passes by itself or is no regular file."""
    path = directory / layout.PRODUCERS
    try:
        return read_regular(path, BYTES_MAX)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and trouble_of(error) is not Trouble.DEVICE:
            raise
        notes.append(f"{path} cannot be read ({error}): nothing of the log is cut by it")
        return None


def forget_withheld(directory: Path, incarnation: int, boot: bytes, withheld: Sequence[WithheldRange]) -> None:
    """After a power loss a batch may be withheld whose place is there: then the file of producers goes. OSError."""
    path = directory / layout.PRODUCERS
    content = _read(directory, [])
    if content is None:
        if path.exists():  # it may have the place of a batch that is withheld now: read later, it would be believed
            path.rename(directory / layout.PRODUCERS_UNREADABLE)
            layout.sync_directory(directory)
        return
    if not is_of_boot(content, incarnation, boot) and is_any_withheld(content, incarnation, withheld):
        path.unlink()
        layout.sync_directory(directory)
