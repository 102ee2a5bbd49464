"""Makes the golden data directory of the format that this checkout writes: `python -m tests.golden.make_directory v2`.

Run once, when the format has a new version, from the last commit that writes it; what was made is committed and never
made again. Everything in it comes from a real server; only the entry of the trash is put there by hand, as a kill
between the rename and the unlinks leaves it.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from shardd.log import layout
from shardd.log.manifest import read_manifest
from shardd.protocol.extensions import ExtensionCode
from shardd.protocol.topic_settings import SetTopicSettings
from tests.support import golden_directory as golden
from tests.support import wire
from tests.support.server import Server
from tests.support.wire import Wire, identifier, message, str8, to_partition

SETTINGS: Final = {
    "SHARDD_SYSTEM_SEGMENT_SIZE": "5 KiB",
    "SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "2",
    "SHARDD_DATA_MAINTENANCE_MESSAGES_INTERVAL": "100 ms",
}
CODECS: Final = ("gzip", "lz4", "zstd")
SEALED_WITHIN_S: Final = 60.0
KEPT_MESSAGES: Final = 50  # by a limit of the topic
RENAMES: Final = 2100  # records: the server writes a snapshot after 2,000
CREATE_USER, CREATE_TOKEN, CREATE_GROUP, DELETE_GROUP, POLL = 33, 42, 602, 603, 100
_NOT_DATA: Final = (".lock", "runtime", "state.reserve")


def fill(root: Wire, stream: str, topic: str, partition: int, count: int, *, start: int = 0) -> None:
    """Batches of 1 to 4 messages of 0 to 299 bytes, some with user headers, origin timestamps and ids of their own."""
    number = start
    while number < start + count:
        batch = []
        for _ in range(min(1 + number % 4, start + count - number)):
            text = f"{stream}/{topic}/{partition}/{number} ".encode()
            headers = b"\x02" + wire.str32("n") + b"\x0c" + struct.pack("<IQ", 8, number) if number % 5 == 0 else b""
            own_id = (number + 1).to_bytes(16, "little")
            batch.append(message(text * (1 + number % 9), headers, message_id=own_id, origin_timestamp_us=number))
            number += 1
        root.send(stream, topic, to_partition(partition), batch)


def set_value(root: Wire, stream: str, topic: str, key: str, value: str) -> None:
    root.request(ExtensionCode.SET_TOPIC_SETTINGS, SetTopicSettings(stream, topic, ((key, value),)).encode())


def set_ack(root: Wire, stream: str, topic: str, level: str) -> None:
    set_value(root, stream, topic, "ack", level)


def wait_until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SEALED_WITHIN_S
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.05)


def wait_until_sealed(partition: Path) -> None:
    """Every segment but the last one has its digest."""
    starts = sorted(int(path.stem) for path in partition.glob("*.log"))[:-1]

    def sealed() -> bool:
        manifests = [read_manifest(partition, start) for start in starts]
        return all(each is not None and each.sealed is not None for each in manifests)

    wait_until(sealed, f"{partition} has its digests")


def compressed_and_limited(root: Wire, data: Path) -> None:
    """A topic for each algorithm, all of its sealed segments compressed; one whose log starts within a segment that is
    compressed, one with a plain segment. The last stream: ids of the others stay."""
    stream = root.create_stream("kept")
    partitions = []
    for codec in CODECS:
        topic = root.create_topic("kept", codec, 1)
        set_value(root, "kept", codec, "compression", codec)
        fill(root, "kept", codec, 0, 90)
        partitions.append(layout.partition_directory(data, stream, topic, 0))
    for name, codec in (("limited", "zstd"), ("limited-plain", "none")):
        topic = root.create_topic("kept", name, 1)
        set_value(root, "kept", name, "compression", codec)
        fill(root, "kept", name, 0, 90)
        if codec != "none":
            partitions.append(layout.partition_directory(data, stream, topic, 0))
    wait_until(lambda: all(len(list(each.glob("*.log"))) == 1 for each in partitions), "all is compressed")
    for name in ("limited", "limited-plain"):
        set_value(root, "kept", name, "partition_messages_max", str(KEPT_MESSAGES))
    wait_until(
        lambda: all(
            len(root.read_all("kept", name, 0)) == KEPT_MESSAGES
            and log_start(data, stream, topic) == 90 - KEPT_MESSAGES
            for topic, name in ((3, "limited"), (4, "limited-plain"))
        ),
        "the log starts are written",
    )


def log_start(data: Path, stream: int, topic: int) -> int:
    """As the manifest of the active segment says it."""
    partition = layout.partition_directory(data, stream, topic, 0)
    manifest = read_manifest(partition, max(int(path.stem) for path in partition.glob("*.log")))
    return 0 if manifest is None else manifest.log_start


def first_half(root: Wire, data: Path) -> None:
    """What the snapshot covers in the end."""
    for stream in ("orders", "gone", "metrics"):
        root.create_stream(stream)
    root.create_topic("orders", "events", 3)
    root.create_topic("orders", "audit", 1)
    root.create_topic("gone", "lost", 1)
    root.create_topic("metrics", "cpu", 2)
    root.create_topic("metrics", "removed", 1)
    set_ack(root, "orders", "audit", "durable")
    set_ack(root, "metrics", "cpu", "memory")
    for partition, count in ((0, 120), (1, 40), (2, 1)):
        fill(root, "orders", "events", partition, count)
    fill(root, "orders", "audit", 0, 25)
    fill(root, "gone", "lost", 0, 10)
    fill(root, "metrics", "removed", 0, 30)
    shutil.copytree(data / "streams" / "2" / "topics" / "1" / "partitions" / "0", data.with_name("to-trash"))
    root.request(wire.DELETE_TOPIC, golden.place_of("metrics", "removed"))
    root.delete_stream("gone")
    root.request(CREATE_USER, str8("alice") + str8(golden.PASSWORDS["alice"]) + b"\1\0")
    root.request(CREATE_GROUP, golden.place_of("orders", "events") + str8("workers"))
    for number in range(RENAMES):
        root.request(wire.UPDATE_STREAM, identifier(2) + str8("metrics" if number % 2 else "metrics-old"))


def second_half(root: Wire, address: str) -> dict[str, str]:
    """Behind the snapshot, in the log alone. Returns the tokens."""
    root.create_stream("late")
    root.create_topic("late", "purged", 2)
    set_ack(root, "late", "purged", "written")
    set_ack(root, "metrics", "cpu", "")
    fill(root, "late", "purged", 0, 20)
    root.purge_topic("late", "purged")
    fill(root, "late", "purged", 1, 5, start=100)
    root.request(wire.CREATE_PARTITIONS, golden.place_of("metrics", "cpu") + struct.pack("<I", 2))
    fill(root, "metrics", "cpu", 3, 12)
    rights = bytes([0] * 5 + [1] + [0] * 4 + [0])
    root.request(CREATE_USER, str8("bob") + str8(golden.PASSWORDS["bob"]) + b"\1\1" + struct.pack("<I", 11) + rights)
    root.store_offset("orders", "events", 0, 99, 1)
    root.store_offset("orders", "events", 0, 3, "reader")
    root.store_offset("orders", "events", 1, 39, 7)
    join(address)
    secrets = {}
    for name in ("never", "once"):
        answer = root.request(CREATE_TOKEN, str8(name) + struct.pack("<Q", 0))
        secrets[name] = answer[1 : 1 + answer[0]].decode()
    return secrets


def join(address: str) -> None:
    """A member of the group "workers" stores an offset, then leaves with its connection."""
    place = golden.place_of("orders", "events")
    with wire.connect(address) as member:
        member.request(golden.JOIN_GROUP, place + identifier("workers"))
        reader = wire.group("workers") + place + wire.optional_partition(0)
        member.request(POLL, reader + struct.pack("<BQIB", wire.POLL_NEXT, 0, 15, 1))


def pack(version: str, data: Path, tokens: dict[str, str], about: str) -> None:
    target = golden.ROOT / version
    target.mkdir(parents=True)
    with tarfile.open(target / "data.tar.xz", "w:xz", preset=9) as archive:
        for path in sorted(data.rglob("*")):
            relative = path.relative_to(data)
            if relative.parts[0] not in _NOT_DATA:
                entry = archive.gettarinfo(str(path), str(Path("data") / relative))
                entry.uid = entry.gid = 0
                entry.uname = entry.gname = ""
                with (path if path.is_file() else Path(os.devnull)).open("rb") as file:
                    archive.addfile(entry, file if path.is_file() else None)
    (target / "description.json").write_text("{}")
    with tempfile.TemporaryDirectory() as scratch, Server(golden.unpack(version, Path(scratch)), SETTINGS) as server:
        seen, settings = golden.describe(server.address, tokens), golden.settings(server.address)
    content = {"about": about, "secrets": tokens, "seen": seen, "settings": settings}
    (target / "description.json").write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")


def make(version: str, about: str) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(scratch) / "data"
        with Server(data, SETTINGS) as server, wire.connect(server.address) as root:
            first_half(root, data)
            tokens = second_half(root, server.address)
            compressed_and_limited(root, data)
            wait_until_sealed(data / "streams/0/topics/0/partitions/0")
        with (
            (data / "streams/0/topics/0/partitions/1")
            .joinpath(max(path.name for path in (data / "streams/0/topics/0/partitions/1").glob("*.log")))
            .open("ab") as active
        ):
            active.write(b"a tail that a power loss has torn off in its middle")
        with Server(data, SETTINGS) as server:  # cuts it and keeps it as .torn
            wire.connect(server.address).close()
        (data / "trash").mkdir(exist_ok=True)
        data.with_name("to-trash").rename(data / "trash" / "1763717400000000000-4711-0-0")
        pack(version, data, tokens, about)


if __name__ == "__main__":
    make(sys.argv[1], " ".join(sys.argv[2:]))
