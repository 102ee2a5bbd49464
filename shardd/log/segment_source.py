"""What a segment is at one moment, beside a server that changes its layout, archives it, or deletes it: decided once,
by one descriptor and one reading of its manifest. Whoever asks the directory a second time may get another answer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from shardd.log import layout
from shardd.log.blocks import Blocks
from shardd.log.manifest import Manifest, UnknownLayoutError, decode_manifest
from shardd.log.segment_layout import COMPRESSED, PLAIN, SegmentLayout
from shardd.log.segment_reader import plain_bytes, unpacked
from shardd.runtime.disk_errors import Trouble, trouble_of
from shardd.runtime.regular_files import open_regular, read_regular

ATTEMPTS_MAX: Final = 20  # a layout changes once in the life of a segment


class SegmentSource(msgspec.Struct, frozen=True):
    """An open file with the records, as it was when it was opened, and the manifest that was read before: its
    checkpoints are never ahead of what is read. `content` of the manifest: None without one; `manifest`: None, too,
    where it says nothing to this version. `unread`: why the manifest counts as none although there is one."""

    directory: Path
    start_offset: int
    descriptor: int
    kept: SegmentLayout
    state: os.stat_result
    content: bytes | None
    manifest: Manifest | None
    unread: str = ""

    @property
    def log_bytes(self) -> int:
        """How long the plain log is, as far as that is known without reading."""
        sealed = None if self.manifest is None else self.manifest.sealed
        return sealed.log_bytes if self.kept is COMPRESSED and sealed is not None else self.state.st_size

    @contextmanager
    def plain(self) -> Iterator[int]:
        """Descriptor from which the plain log is read, for a `with` block. OSError."""
        if self.kept is PLAIN:
            yield self.descriptor
            return
        sealed = None if self.manifest is None else self.manifest.sealed
        size = plain_bytes(self.directory, self.start_offset, self.descriptor) if sealed is None else sealed.log_bytes
        descriptor = unpacked(self.directory, Blocks(self.descriptor, size))
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def link(self, target: Path) -> None:
        """A second name for the file that is open, whatever its first one is by now. OSError; FileNotFoundError when it
        has no name any more."""
        # A directory descriptor is what makes os.link follow the name of the descriptor.
        os.link(f"/proc/self/fd/{self.descriptor}", target, src_dir_fd=self.descriptor)


class ManifestContent(NamedTuple):
    """As in SegmentSource."""

    content: bytes | None
    manifest: Manifest | None
    unread: str = ""


def read_manifest_content(directory: Path, start_offset: int) -> ManifestContent:
    """The bytes of a manifest and what they say. One that cannot be read costs a scan of its log, as for a start.
    UnknownLayoutError, OSError."""
    path = layout.segment_manifest(directory, start_offset)
    try:
        content = read_regular(path)
    except FileNotFoundError:
        return ManifestContent(None, None)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and trouble_of(error) is not Trouble.DEVICE:
            raise
        return ManifestContent(None, None, str(error))
    try:
        return ManifestContent(content, decode_manifest(content))
    except UnknownLayoutError as error:
        raise UnknownLayoutError(f"{path}: {error}") from None
    except ValueError:
        return ManifestContent(content, None)


@contextmanager
def opened_source(directory: Path, start_offset: int) -> Iterator[SegmentSource]:
    """For a `with` block. FileNotFoundError: the segment is gone, or is not one any more. UnknownLayoutError,
    OSError."""
    for _ in range(ATTEMPTS_MAX):
        read = read_manifest_content(directory, start_offset)
        said = PLAIN if read.manifest is None else read.manifest.layout
        found = _opened(directory, start_offset, said)
        descriptor, kept = found
        try:
            # A manifest of another layout beside the file is one that a crash has left, or an earlier one.
            if kept is said or read_manifest_content(directory, start_offset).content == read.content:
                yield SegmentSource(directory, start_offset, descriptor, kept, os.fstat(descriptor), *read)
                return
        finally:
            os.close(descriptor)
    raise FileNotFoundError(f"{layout.segment_manifest(directory, start_offset)} changes all the time")


def _opened(directory: Path, start_offset: int, said: SegmentLayout) -> tuple[int, SegmentLayout]:
    other = COMPRESSED if said is PLAIN else PLAIN
    try:
        return open_regular(layout.segment_file(directory, start_offset, said.suffix)), said
    except FileNotFoundError:
        return open_regular(layout.segment_file(directory, start_offset, other.suffix)), other
