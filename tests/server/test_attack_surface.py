"""Everything of a running server that somebody could reach stands in docs/security.md, with its mode."""

from __future__ import annotations

import re
import socket
import stat
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import psutil

from tests.support import wire
from tests.support.server import Server
from tests.support.serving import Serving

DOCUMENT = Path(__file__).parents[2] / "docs" / "security.md"
PARTITIONS = 4
# with a door for QUIC or HTTP; after many changes; where it is allowed; of topics that are compressed
# or to which a producer sends once
SOMETIMES = {
    "streams/*/producers",
    "socket:udp",
    "access.key",
    "state.snapshot",
    "anon_inode:[io_uring]",
    "streams/*/*.blocks",
    "retention.clock",
}


def rows(first_column: str) -> Iterator[tuple[list[str], str]]:
    """(patterns of the first cell, second cell) of the table with that first column."""
    inside = False
    for line in DOCUMENT.read_text().splitlines():
        if line.startswith(f"| {first_column} |"):
            inside = True
        elif inside and not line.startswith("|"):
            return
        elif inside and not line.startswith("|---"):
            cells = line.split("|")
            yield re.findall(r"`([^`]+)`", cells[1]), cells[2]


def fill(server: Server) -> None:
    with wire.connect(server.address) as connection:
        connection.create_topic(connection.create_stream("surface"), "t", PARTITIONS)
        for partition in range(PARTITIONS):
            connection.send(0, 0, wire.to_partition(partition), [wire.message(b"here")])
            connection.store_offset(0, 0, partition, 0)


SERVER: Final = Serving(fill=fill)


def sockets_of(process: psutil.Process) -> dict[int, str]:
    """What each socket is, by descriptor."""
    kinds = {socket.AF_UNIX: "unix", socket.AF_INET: "tcp", socket.AF_INET6: "tcp"}
    connections = process.net_connections("all")
    udp = {each.fd for each in connections if each.type == socket.SOCK_DGRAM and each.family != socket.AF_UNIX}
    return {each.fd: "udp" if each.fd in udp else kinds.get(each.family, str(each.family)) for each in connections}


def descriptors(server: Server) -> Iterator[str]:
    """Every descriptor of every process, as the document writes it."""
    for process in server.processes():
        sockets = sockets_of(process)
        for entry in Path(f"/proc/{process.pid}/fd").iterdir():
            try:
                target = str(entry.readlink()).removesuffix(" (deleted)")
            except OSError:
                continue  # closed meanwhile
            if target == str(server.log_path):
                continue  # where this test sends standard output
            if target.startswith("socket:"):
                target = f"socket:{sockets.get(int(entry.name), 'unix')}"
            target = target.replace(str(server.data_dir), "<data>")
            yield re.sub(r"^(/run/user/\d+/shardd|/run/shardd|/tmp/shardd-\d+)/", "<lock directory>/", target)


def test_every_descriptor_of_a_server_is_documented(server: Server) -> None:
    known = [pattern for patterns, _ in rows("descriptor") for pattern in patterns]
    assert len(known) > 10
    found = set(descriptors(server))
    matched = {(each, pattern) for each in found for pattern in known if fnmatchcase(each, pattern.replace("[", "[[]"))}
    assert found - {each for each, _ in matched} == set(), "not in docs/security.md"
    assert set(known) - {pattern for _, pattern in matched} - SOMETIMES == set(), "documented, and not there"


def test_every_file_of_a_server_has_its_documented_mode(server: Server) -> None:
    known = {pattern: int(cell.split()[0], 8) for patterns, cell in rows("file") for pattern in patterns}
    assert len(known) > 8
    seen = set()
    for path in server.data_dir.rglob("*"):
        mode = stat.S_IMODE(path.lstat().st_mode)
        if path.is_dir():
            assert mode == 0o700, path
            continue
        name = str(path.relative_to(server.data_dir))
        patterns = [pattern for pattern in known if fnmatchcase(name, pattern)]
        assert patterns, f"{name} is not in docs/security.md"
        assert mode == known[patterns[0]], name
        seen.update(patterns)
    assert set(known) - seen - SOMETIMES == set(), "documented, and not there"


def test_no_name_leads_to_a_unix_socket_of_a_server(server: Server) -> None:
    """A socket may still show the path at which it was made: nothing is there any more."""
    connections = [each for process in server.processes() for each in process.net_connections("unix")]
    assert len(connections) > PARTITIONS
    names = {str(each.laddr) for each in connections if each.laddr}
    assert not {name for name in names if name.startswith("@") or Path(name).exists()}
