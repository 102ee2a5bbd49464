"""What the tables of the lake sinks share. Commits run on the driver.

Each commit is idempotent: what was done stands in the same transaction as the files, and what is there already is
skipped. After a crash Spark runs a batch again under the same id.
"""

from __future__ import annotations

import errno
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.fs as pafs

from shardd.spark.sinks.files import WrittenFile

COMMIT_ATTEMPTS: Final = 10
RETRY_PAUSE_S: Final = 0.05  # longer with each attempt


class CommitConflictError(RuntimeError):
    """Another writer committed what this one was about to commit, or was faster again and again."""


class SchemaMismatchError(ValueError):
    """The rows do not fit into the table; one sentence says which column and the way out."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one commit records: `application` (a query, or the archive of one partition) is at `version` now.

    `proven`: it must stand at `begin` until then (None: not be there yet), where its writer began. Otherwise a version
    that is there already makes the commit a repetition.
    """

    application: str
    version: int
    begin: int | None = None
    proven: bool = False


def is_repetition(steps: Sequence[Step], recorded: Callable[[str], int | None], where: str) -> bool:
    """Whether these steps were done before. `CommitConflictError` when one does not begin where the table stands."""
    for step in steps:
        found = recorded(step.application)
        if step.proven:
            if found != step.begin:
                began = "nothing" if step.begin is None else step.begin
                raise CommitConflictError(
                    f"{where}: '{step.application}' stands at {found}, but this run began at {began}: another run has"
                    " committed meanwhile. Nothing of this one is committed; run it again when the other has ended"
                )
        elif found is not None and found >= step.version:
            return True
    return False


class LakeTable(ABC):
    """One table. Pickles; opens what it needs when it is used."""

    @abstractmethod
    def place(self) -> tuple[pafs.FileSystem, str]:
        """File system and directory that tasks write to."""

    @abstractmethod
    def commit(
        self, files: Sequence[WrittenFile], schema: pa.Schema, steps: Sequence[Step], *, overwrite: bool = False
    ) -> bool:
        """Adds (or with `overwrite` exchanges) the files and records all steps, in one transaction. False: it was
        done before. `CommitConflictError`, `SchemaMismatchError`."""

    @abstractmethod
    def version(self, application: str) -> int | None:
        """The highest version committed for an application; None for none."""


class ListedTable(LakeTable):
    """A table that says which files it has."""

    @abstractmethod
    def paths(self) -> list[str]:
        """The files that the table has now, as URIs or local paths."""


def lost_again(where: str) -> CommitConflictError:
    """All attempts were used up."""
    return CommitConflictError(f"{where}: {COMMIT_ATTEMPTS} commits lost against other writers; nothing is committed")


def sync_path(path: Path) -> None:
    """Brings a file or a directory to the device."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def link_if_possible(source: Path, target: Path) -> bool:
    """Gives a file a second name. FileExistsError when it is taken; False on file systems without hard links."""
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
            return False
        raise
    return True
