"""How a file comes into a Parquet archive: written under a temporary name, brought to the device, linked under its own
name while the directory's lock is held and no other file has any of its offsets.

A run holds a lock of its topics, too, so that a second archiver is told at once. It is not enough alone: tasks of a
driver that was killed may go on. On object stores there are no locks; there a file is looked for before it is moved.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pyarrow.fs as pafs
import pyarrow.parquet as pq

from shardd.spark import archive_listing
from shardd.spark.archive_files import Footer
from shardd.spark.archive_listing import GAP_SUFFIX, ArchiveConflictError, file_name, file_system, topic_path
from shardd.spark.positions import TopicName
from shardd.spark.sinks.files import WrittenFile
from shardd.spark.sinks.tables import link_if_possible, sync_path

TEMPORARY: Final = re.compile(r"\d+-\d+-\d{20}-\d{20}\.parquet\.[0-9a-f]{32}\.tmp", re.ASCII)
ARCHIVER_LOCK: Final = "_archiver.lock"
PUBLISH_LOCK: Final = "_publish.lock"
PUBLISH_WAIT_S: Final = 120.0  # it is held for a listing and a link
Write = Callable[[pafs.FileSystem, str], WrittenFile]


@contextmanager
def alone(root: str, name: TopicName) -> Iterator[None]:
    """This process is the archiver of a topic. `ArchiveConflictError` when there is one."""
    directory = topic_path(root, name)
    if "://" in directory:
        yield
        return
    with ExitStack() as held:
        try:
            held.enter_context(archive_listing.locked(directory, ARCHIVER_LOCK, wait_s=0))
        except ArchiveConflictError as error:
            raise ArchiveConflictError(
                f"another run archives '{name}' to {root} now; run it again when that one has ended"
            ) from error
        yield


def publish(root: str, footer: Footer, write: Write) -> WrittenFile:
    """Writes one file and gives it its name. The same task of the same run, done again, finds it there.
    `ArchiveConflictError`."""
    name = TopicName(footer.stream, footer.topic)
    numbers = (footer.partition, footer.incarnation, footer.start, footer.end)
    system, inner = file_system(topic_path(root, name))
    system.create_dir(inner, recursive=True)
    final = f"{inner}/{file_name(*numbers)}"
    there = _there(root, name, footer)
    if there is not None:
        return there
    temporary = f"{final}.{uuid.uuid4().hex}.tmp"
    written = write(system, temporary)
    try:
        if not isinstance(system, pafs.LocalFileSystem):
            there = _there(root, name, footer)
            if there is None:
                system.move(temporary, final)
            return there or WrittenFile(final, written.size_bytes, written.rows)
        sync_path(Path(temporary))
        with archive_listing.locked(inner, PUBLISH_LOCK, wait_s=PUBLISH_WAIT_S):
            there = _there(root, name, footer)
            if there is None:
                _give_name(Path(temporary), Path(final))
        sync_path(Path(inner))
        return there or WrittenFile(final, written.size_bytes, written.rows)
    finally:
        if system.get_file_info(temporary).type != pafs.FileType.NotFound:
            system.delete_file(temporary)


def _give_name(temporary: Path, final: Path) -> None:
    """By a link, which never replaces a file; the lock alone must do on file systems without them."""
    if not link_if_possible(temporary, final):
        temporary.rename(final)


def _there(root: str, name: TopicName, footer: Footer) -> WrittenFile | None:
    """The file when this run has published it already. `ArchiveConflictError` when another one has any of its
    offsets."""
    listing = archive_listing.list_topic(root, name)
    history = listing.get((footer.partition, footer.incarnation))
    other = None if history is None else history.overlapping(footer.start, footer.end)
    if other is None:
        return None
    system, inner = file_system(other.path)
    if (other.start, other.end) == (footer.start, footer.end):
        with system.open_input_file(inner) as file:
            metadata = pq.read_metadata(file)
            found = Footer.of(metadata)
            if found is not None and found.run == footer.run:
                return WrittenFile(inner, file.size(), metadata.num_rows)
    raise ArchiveConflictError(
        f"offsets {footer.start} to {footer.end} of partition {footer.partition} of '{name}' were archived by another"
        f" run meanwhile ({other.path}); run it again when that one has ended"
    )


def mark(root: str, name: TopicName, partition: int, incarnation: int, start: int, end: int) -> None:
    """Records offsets that the archive will never hold: the server had deleted them."""
    system, inner = file_system(topic_path(root, name))
    system.create_dir(inner, recursive=True)
    path = f"{inner}/{file_name(partition, incarnation, start, end, GAP_SUFFIX)}"
    if isinstance(system, pafs.LocalFileSystem):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666))
    else:
        system.open_output_stream(path).close()
