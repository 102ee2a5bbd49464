"""What lies beside the log of a partition, for `shardd doctor log`: what of it is damaged, what the device does not
give, what that costs, and the way out. Looking changes nothing (diagnosis.py)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from shardd.engine import _native
from shardd.log import layout
from shardd.log.imported import read_imported
from shardd.log.incarnation import read_incarnation
from shardd.log.marker import UnknownMarkerError
from shardd.log.segment_recovery import proven_incarnation
from shardd.log.stored_offsets import UnusableTableError, read_offsets, read_settled_table, repair_table, table_notes
from shardd.runtime.regular_files import read_regular

_MOVE: Final = "To do without it, stop the server and move the file to another place:"
_OFFSETS: Final = (
    f"messages are served, whoever asks for a stored offset gets CANNOT_READ_FILE (10002). {_MOVE} no consumer or "
    "group of the partition has a stored offset then; `shardd offset update` stores one"
)
UNUSABLE_OFFSETS: Final = (
    "messages are served, whoever asks for a stored offset gets CANNOT_READ_FILE (10002). A later version of shardd "
    "may have written the file and serves them; without one, and without a backup, they are lost"
)
_PRODUCERS: Final = (
    "messages are served, batches of idempotent producers are refused until the first other send, which gives it the "
    f"name {layout.PRODUCERS_UNREADABLE}: its producers begin a new epoch then. There is nothing to be done"
)
_PROVEN_MARKER: Final = f"messages are served: a manifest says the same. {_MOVE} the next start makes it again"
_MARKER: Final = (
    "no manifest says the same, so the partition is read only and serves no message until it can be read. Leave the "
    "file where it is: without it the next start would take the messages for none of this partition. Copy the "
    "directory to another device, or restore a backup"
)
_IMPORTED: Final = "messages are served, and their times may fall anywhere in this log. There is nothing to be done"
_KEPT: Final = "it could not be read once, and its producers had to begin a new epoch; it may be deleted"


class SideView(msgspec.Struct):
    """`damage`: of stored offsets, which a repair drops; `unreadable`: each with its cost and the way out; `notes`:
    what is odd and lies there."""

    damage: list[str] = msgspec.field(default_factory=list)
    unreadable: list[str] = msgspec.field(default_factory=list)
    notes: list[str] = msgspec.field(default_factory=list)


def diagnose_sides(directory: Path) -> SideView:
    """Reads what lies beside the log; of a directory that is gone nothing."""
    view = SideView()
    incarnation = None
    marker = _PROVEN_MARKER if proven_incarnation(directory) is not None else _MARKER
    with _told(view, directory / layout.INCARNATION, marker):
        incarnation = read_incarnation(directory)
    with _told(view, directory / layout.CONSUMER_OFFSETS, _OFFSETS):
        table = read_settled_table(directory, incarnation)
        if table is not None and table.counts:
            view.damage = table_notes(directory, table)
        else:
            view.notes = read_offsets(directory, incarnation)[1]
    producers = directory / layout.PRODUCERS
    with _told(view, producers, _PRODUCERS):
        if producers.exists():
            read_regular(producers, _native.PRODUCERS_FILE_READ_MAX)
            if (kept := directory / layout.PRODUCERS_UNREADABLE).exists():
                view.notes.append(f"{kept}: {_KEPT}")
    with _told(view, directory / layout.IMPORTED, _IMPORTED):
        read_imported(directory)
    return view


@contextmanager
def _told(view: SideView, path: Path, cost: str) -> Iterator[None]:
    """For what reads `path`: why that cannot be, and what it costs. A file that is gone since it was met costs nothing:
    its partition was deleted or purged."""
    try:
        yield
    except FileNotFoundError:
        return
    except UnknownMarkerError as error:
        view.unreadable.append(f"{error}: the partition stays closed until a version that knows it opens the directory")
    except UnusableTableError as error:
        view.unreadable.append(f"{error}: {UNUSABLE_OFFSETS}")
    except (OSError, ValueError) as error:
        name = getattr(error, "filename", None) or path
        reason = error.strerror if isinstance(error, OSError) else str(error)
        view.unreadable.append(f"{name} cannot be read ({reason}): {cost}")


def repair_offsets(directory: Path) -> Path:
    """Drops what is damaged in the stored offsets; the file. OSError, ValueError."""
    return repair_table(directory, read_incarnation(directory))
