"""Manifests through a real server: rolled segments are sealed in the background, an orderly stop leaves nothing to
scan, and a kill leaves only what is behind the last checkpoints."""

from __future__ import annotations

import time
from pathlib import Path

import xxhash

from shardd.log import layout
from shardd.log.manifest import read_manifest
from tests.support import wire
from tests.support.server import Server
from tests.support.top import shard_figures

SEGMENT_BYTES = 64 << 10
BATCH = 50
RECORD_BYTES = 64 + 1000
TIMEOUT_S = 60.0


def figures(server: Server) -> dict[str, int]:
    """Sums over all shards."""
    rows = shard_figures(server.address)
    return {name: sum(row[name] for row in rows) for name in rows[0] if name.startswith(("recovery.", "sealing."))}


def starts_in(directory: Path) -> list[int]:
    return sorted(int(path.stem) for path in directory.glob("*.log"))


def wait_sealed(server: Server, directory: Path) -> None:
    """Until every segment but the active one has its digest, and none more."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        manifests = [read_manifest(directory, start) for start in starts_in(directory)]
        sealed = [manifest is not None and manifest.sealed is not None for manifest in manifests]
        if all(sealed[:-1]) and manifests[-1] is not None:
            assert not sealed[-1]
            return
        assert time.monotonic() < deadline, server.log()
        time.sleep(0.05)


def test_rolled_segments_are_sealed_and_trusted(tmp_path: Path) -> None:
    payloads = [bytes([number % 251]) * 1000 for number in range(12 * BATCH)]
    server = Server(tmp_path / "data", {"SHARDD_SYSTEM_SEGMENT_SIZE": str(SEGMENT_BYTES)})
    server.start()
    try:
        with wire.connect(server.address) as connection:
            stream = connection.create_stream("s")
            topic = connection.create_topic(stream, "t", 1)
            for first in range(0, len(payloads), BATCH):
                batch = [wire.message(payload) for payload in payloads[first : first + BATCH]]
                connection.send(stream, topic, wire.to_partition(0), batch)
        directory = layout.partition_directory(server.data_dir, stream, topic, 0)
        starts = starts_in(directory)
        assert len(starts) > 3
        wait_sealed(server, directory)
        for start in starts[:-1]:
            manifest, log = read_manifest(directory, start), layout.segment_log(directory, start).read_bytes()
            assert manifest is not None and manifest.sealed is not None
            assert (manifest.sealed.log_bytes, manifest.sealed.digest) == (len(log), xxhash.xxh3_128_digest(log))
        active_bytes = layout.segment_log(directory, starts[-1]).stat().st_size
        for scanned_bytes, end in ((active_bytes, server.kill_supervisor), (0, server.stop)):
            end()
            if end == server.kill_supervisor:  # as a server before manifests were leaves the oldest one
                layout.segment_manifest(directory, 0).unlink()
            server.start()
            found = figures(server)
            assert (found["recovery.partitions"], found["recovery.segments"]) == (1, len(starts))
            assert found["recovery.scanned_bytes"] == scanned_bytes
            wait_sealed(server, directory)
            with wire.connect(server.address) as connection:
                assert [each.payload for each in connection.read_all(stream, topic, 0)] == payloads
    finally:
        server.stop()
