"""`make test-compat`: which released client does what on one server with one directory; docs/compatibility.md shows it.

    python -m tests.compat.matrix [--write] [--only NAME ...]

Each client writes; then every client reads what all have written, and those that have groups are members of one.
Clients before iggy-py 0.2.5 know one address, so all of it runs in a network of its own, where 127.0.0.1:8090 is free.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from shardd.protocol.codes import Code
from tests.compat.members import group_of_all
from tests.compat.other_languages import other_languages
from tests.compat.run_on_default_port import loopback_up
from tests.compat.rust_client import CLIENT as RUST
from tests.compat.rust_client import command_of, rust_client
from tests.support import wire
from tests.support.server import Server
from tests.support.venvs import client_python, earlier_python
from tests.support.wire import Wire

PAGE: Final = Path(__file__).parents[2] / "docs" / "compatibility.md"
BEGIN, END = "<!-- made by `make test-compat` -->", "<!-- end -->"
IGGY_PY: Final = ("0.1.0", "0.2.0", "0.2.1", "0.2.2", "0.2.3", "0.2.4", "0.2.5", "0.2.6", "0.2.7", "0.4.0")
APACHE_IGGY: Final = ("0.5.0", "0.6.0", "0.7.0", "0.8.0", "0.9.0")
CLIENTS: Final = (*(f"iggy-py {each}" for each in IGGY_PY), *(f"apache-iggy {each}" for each in APACHE_IGGY), RUST)
COLUMNS: Final = ("log in", "create", "send", "poll", "commit", "reads all others", "group")
SENT: Final = ("one", "two" * 300, "three")
THAT_CUT_TEXTS: Final = ("iggy-py 0.2.0", "iggy-py 0.2.1")
RUN_TIMEOUT_S: Final = 120
TOPIC: Final = "t"
READER: Final = 1  # what earlier clients are called as consumers
APART: Final = ("unshare", "--map-root-user", "--net")


class Found(msgspec.Struct):
    """Of one client: what it saw, and `cells` by column."""

    python: str
    cells: dict[str, str] = {}
    wrote: list[list[Any]] = []

    @property
    def works(self) -> bool:
        return all(cell in ("yes", "-") for cell in self.cells.values())


def as_sent(client: str, text: str) -> str:
    """What leaves a client for this text: two releases write "0|" before it, and cut what is long."""
    if client not in THAT_CUT_TEXTS:
        return text
    return f"0|{text[:20]}...{text[-20:]}" if len(text) > 40 else f"0|{text}"


def python_of(client: str) -> Path:
    """The interpreter of its environment, or the program; LookupError or CalledProcessError when there is none."""
    if client == RUST:
        return Path(rust_client())
    name, version = client.split()
    return client_python(version) if name == "apache-iggy" and version >= "0.7" else earlier_python(client)


def first_partition(client: str) -> int:
    return 0 if client.startswith("apache-iggy") and client != "apache-iggy 0.5.0" else 1


def stream_of(client: str) -> str:
    return client.replace(" ", "-")


def run(python: str, client: str, address: str, stream: str, others: Iterable[str]) -> dict[str, Any]:
    """What the client saw; the text of its error instead when it failed."""
    arguments = [address, stream, *others]
    if client != RUST:
        arguments = [client.split()[1], address, str(first_partition(client)), stream, *others]
    command = command_of("session", client, python, arguments)
    try:
        done = subprocess.run(command, check=True, timeout=RUN_TIMEOUT_S, capture_output=True, text=True)
        seen: dict[str, Any] = json.loads(done.stdout)
    except (subprocess.SubprocessError, json.JSONDecodeError) as problem:
        return {"failed": str(problem)}
    return seen


def yes(right: object, otherwise: object = "") -> str:
    return "yes" if right else f"no: {otherwise}"[:80].replace("|", "/")


def judge_writing(client: str, found: Found, seen: dict[str, Any]) -> None:
    """Log in (a wrong password is refused), create (twice is refused), send, poll, and NEXT after a commit."""
    if "failed" in seen:
        found.cells = dict.fromkeys(COLUMNS[:5], yes(False, seen["failed"]))
        return
    found.wrote = [[offset, as_sent(client, text)] for offset, text in enumerate(SENT)]
    created, again, topic = seen["create"]
    polls = seen["polls"]
    found.cells = {
        "log in": yes(seen["login"] is None and seen["wrong"], seen["login"]),
        "create": yes(created is None and topic is None and again, seen["create"]),
        "send": yes(seen["send"] is None and seen["nowhere"], seen["send"]),
        "poll": yes(polls[0] == found.wrote[:2], polls[0]),
        "commit": yes(polls[1:] == [found.wrote[2:], []], polls[1:]),
    }


def forget_readers(root: Wire, streams: Iterable[str]) -> None:
    """Who polls NEXT alone begins where its number has stored: nowhere again."""
    for stream in streams:
        who = wire.consumer(READER) + wire.identifier(stream) + wire.identifier(TOPIC) + wire.optional_partition(0)
        root.exchange(Code.DELETE_CONSUMER_OFFSET, who)


def places(root: Wire, clients: Iterable[str]) -> list[str]:
    """The streams of clients as NAME:ID:ID, with the ids that early clients have for them."""
    ids = root.streams()
    return [f"{stream_of(client)}:{ids[stream_of(client)] + 1}:{topic_id(root, client) + 1}" for client in clients]


def topic_id(root: Wire, client: str) -> int:
    reply = root.request(Code.GET_TOPIC, wire.identifier(stream_of(client)) + wire.identifier(TOPIC))
    return int.from_bytes(reply[:4], "little")


def fill(pythons: dict[str, str], data: Path) -> dict[str, Found]:
    """Every client on one server."""
    found = {client: Found(Path(python).parent.parent.name) for client, python in pythons.items()}
    with Server(data, {"SHARDD_TCP_ADDRESS": "127.0.0.1:8090"}) as server, Wire(server.address) as root:
        root.login()
        for client, python in pythons.items():
            seen = run(python, client, server.address, stream_of(client), ())
            judge_writing(client, found[client], seen)
        there = [client for client in pythons if stream_of(client) in root.streams()]
        for client, python in pythons.items():
            forget_readers(root, map(stream_of, there))
            seen = run(python, client, server.address, "-", places(root, there))
            wrong = [
                f"{other}: {read}"
                for other in there
                if (read := seen.get("others", {}).get(stream_of(other))) != found[other].wrote
            ]
            found[client].cells["reads all others"] = yes(not wrong, wrong[:1])
        members = {client: python for client, python in pythons.items() if not client.startswith("iggy-py")}
        outcome = group_of_all(root, server.address, members)
        for client in pythons:
            found[client].cells["group"] = yes(outcome[client] == "", outcome[client]) if client in members else "-"
    return found


def table(found: dict[str, Found], absent: dict[str, str]) -> list[str]:
    lines = [f"| client | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
    for client in CLIENTS:
        if client in found:
            lines.append(f"| {client} | " + " | ".join(found[client].cells[column] for column in COLUMNS) + " |")
        elif client in absent:
            lines.append(f"| {client} | not run: {absent[client]} |" + " |" * (len(COLUMNS) - 1))
    return lines


def environments(clients: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Interpreters by client, and why others have none."""
    pythons: dict[str, str] = {}
    absent: dict[str, str] = {}
    for client in clients:
        try:
            pythons[client] = str(python_of(client))
        except LookupError as problem:
            absent[client] = str(problem)
        except subprocess.CalledProcessError:
            absent[client] = "no wheel for the Pythons here"
    return pythons, absent


def show(lines: list[str], *, write: bool) -> None:
    print("\n".join(lines), flush=True)
    if not write:
        return
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, behind = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n" + "\n".join(lines) + f"\n\n{END}{behind}")


def inside(pythons: dict[str, str]) -> dict[str, Found]:
    """In a network of its own; without one, those that know one address alone may meet another server there."""
    with tempfile.TemporaryDirectory(prefix="shardd-compat-") as scratch:
        return fill(pythons, Path(scratch) / "data")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="docs/compatibility.md, too")
    parser.add_argument("--only", nargs="*", default=list(CLIENTS))
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside:
        loopback_up()
        print(msgspec.json.encode(inside(json.load(sys.stdin))).decode())
        return 0
    pythons, absent = environments(given.only)
    command = [*APART, sys.executable, "-m", "tests.compat.matrix", "--inside"]
    done = subprocess.run(command, check=True, input=json.dumps(pythons), stdout=subprocess.PIPE, text=True)
    found = msgspec.json.decode(done.stdout, type=dict[str, Found])
    lines = table(found, absent)
    if given.only == list(CLIENTS):
        lines += ["", *other_languages()]
    show(lines, write=given.write)
    failed = [client for client, each in found.items() if not each.works]
    print(f"{len(found) - len(failed)} of {len(found)} clients do everything that they can", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
