"""A data directory of this server that takes an import, and what lies in it, read without a server."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from shardd.cli.offline import ensure_root, locked
from shardd.log import layout
from shardd.log.segment_reader import segment_starts
from shardd.metadata.load import load_state
from shardd.metadata.log_file import FILE_NAME
from shardd.metadata.offline import OfflineMetadata
from shardd.migration.liftbridge.importer import LiftbridgeImport
from shardd.migration.liftbridge.report import ImportOptions, ImportReport
from shardd.protocol.liftbridge.records import LiftbridgeMessage, loaded

NAMESPACE = "liftbridge-default"
OPTIONS = ImportOptions(namespace=NAMESPACE, segment_bytes_max=1 << 20)


class Message(NamedTuple):
    offset: int
    timestamp_us: int
    value: bytes
    key: bytes
    headers: dict[str, bytes]
    subject: str
    reply: str


def import_from(
    source: Path, data: Path, options: ImportOptions = OPTIONS, master: bytes | None = None
) -> ImportReport:
    """As `shardd import liftbridge` does it."""

    def run() -> ImportReport:
        return LiftbridgeImport(source, data, options, master, lambda *_: None).run()

    if options.dry_run:
        return run()
    begin(data)
    with locked(data):
        return run()


def begin(data: Path) -> None:
    """What a first start makes."""
    with locked(data), OfflineMetadata(data) as metadata:
        ensure_root(metadata, {}, default_credentials=True)


def partition_directory(data: Path, name: str, partition: int = 0, namespace: str = NAMESPACE) -> Path:
    state = load_state(data / FILE_NAME)
    stream = state.streams[state.stream_ids[namespace]]
    return layout.partition_directory(data, stream.id, stream.topic_ids[name], partition)


def topics(data: Path, namespace: str = NAMESPACE) -> list[str]:
    """Names of the topics in the native stream; none without it."""
    state = load_state(data / FILE_NAME)
    number = state.stream_ids.get(namespace)
    return [] if number is None else sorted(state.streams[number].topic_ids)


def messages(data: Path, name: str, partition: int = 0, subject: str = "in") -> list[Message]:
    """Records of a partition, taken apart by their lengths alone."""
    directory = partition_directory(data, name, partition)
    found = []
    for start in segment_starts(directory):
        content, at = layout.segment_log(directory, start).read_bytes(), 0
        while at < len(content):
            header = content[at : at + 64]
            offset, timestamp, origin = (int.from_bytes(header[i : i + 8], "little") for i in (24, 32, 40))
            headers, payload = (int.from_bytes(header[i : i + 4], "little") for i in (48, 52))
            assert origin == timestamp
            body = content[at + 64 : at + 64 + payload + headers]
            found.append(as_message(offset, timestamp, loaded(body[:payload], body[payload:], subject)))
            at += 64 + payload + headers
    return found


def as_message(offset: int, timestamp_us: int, new: LiftbridgeMessage) -> Message:
    headers = dict(new.headers)
    return Message(offset, timestamp_us, new.value, new.key, headers, new.subject, new.reply_subject)
