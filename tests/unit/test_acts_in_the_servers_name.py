"""What the server does in its own name, and not in that of a caller: each place asks first whether the caller might, or
has no caller. A walk over all sources that may act so; a new place needs a line here."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

SHARDD: Final = Path(__file__).parents[2] / "shardd"
PACKAGES: Final = ("doors", "dispatch", "service", "worker", "maintenance")
ACTS: Final = {  # by what is done: where that may stand, and how it reads
    "a change as the first user": ("", re.compile(r"users\[ROOT_USER_ID\]")),
    "a request as the server": ("service/", re.compile(r"self\._server\(\)")),
    "a change of the server": ("service/liftbridge/tasks.py", re.compile(r"self\._change\(")),
    "a task of a door": ("", re.compile(r"door\.task\(")),
    "a login that a setting names": ("", re.compile(r"\.login_by_setting\b")),
    "a message to a NATS server": ("doors/", re.compile(r"\bnats\.publish\(|self\._send\((subject|inbox),")),
    "what is told over NATS": ("doors/", re.compile(r"\.(announce|announce_own|send_ack|send_unstored)\(")),
    "a record of the server's own streams": (
        "doors/",
        re.compile(r"self\._logs?(\[\w+\])?\.append\(|self\._cursors\.set\("),
    ),
    "the end of a pause": ("", re.compile(r"liftbridge_resumptions\.add\(")),
}
LINK: Final = "doors/liftbridge/nats/link.py"
PUBLISH: Final = "doors/liftbridge/publish_rpcs.py"
SPREAD: Final = "doors/liftbridge/spread.py"
TASKS: Final = "service/liftbridge/tasks.py"
ASKED: Final = {  # the question that stands before the act, in the same function
    (LINK, "announce"): "takes_stored",
    (LINK, "announce_own"): "takes_unstored",
    (LINK, "_send_own_ack"): "takes_ack",
    (SPREAD, "send_ack"): "right_is_known",
    (SPREAD, "_hear"): "outcome.status is Status.OK",  # a stream has stored it: its owner has asked
    (PUBLISH, "publish_to_subject"): "_require_any",
    ("doors/liftbridge/nats/connection.py", "_log_in"): "may_be_anonymous",
    ("doors/liftbridge/cursor_rpcs.py", "set"): "_cursor",  # the right to read the stream
    ("dispatch/door/requests.py", "handle"): "self._door != LIFTBRIDGE",
    (TASKS, "publish"): "_own",  # streams of the server itself only
    (TASKS, "poll"): "_own",
    (TASKS, "pause_partitions"): "require_found",
    ("service/group_room.py", "make"): "has_share",
}
ASKED_ELSEWHERE: Final = {
    (SPREAD, "send_unstored"): "NatsLink.announce_own asks the settings, NatsServer tells the same user only",
    (SPREAD, "_along"): "Spread.send_ack asks",
    (LINK, "_send_out"): "NatsLink._send has taken it, and what calls that asks",
    (PUBLISH, "publish"): "Spread.send_ack asks",
    ("doors/liftbridge/clients.py", "_log_in"): "make_clients refuses callers without a login without the setting",
    ("doors/liftbridge/internal.py", "_done"): "what appends to InternalLog asks",
    ("doors/liftbridge/cursors.py", "_append"): "CursorRpcs.set asks",
    ("worker/worker.py", ""): "a partition has stored a message: its sender had the right",
    ("service/liftbridge/resumptions.py", "_resume"): "a partition has stored a message: its sender had the right",
}
NO_CALLER: Final = {
    (LINK, "_keep_client"): "liftbridge.nats.user is named for what comes from the NATS server",
    ("doors/liftbridge/cursors.py", "_write_again"): "writes again what was set",
    ("doors/liftbridge/activity.py", "_write_some"): "events of changes that a caller was allowed",
    ("doors/liftbridge/registry.py", "refresh"): "reads what the door has to know of all streams",
    ("doors/liftbridge/live_users.py", "look"): "reads which users there are",
    ("doors/liftbridge/group_clocks.py", "load"): "reads groups, for their clocks",
    ("doors/liftbridge/group_clocks.py", "_look_again"): "reads groups, for their clocks",
    ("doors/liftbridge/group_clocks.py", "_expire"): "the clock of members that are silent",
    ("doors/liftbridge/idle_pauses.py", "_idle"): "the clock of idle partitions",
    ("doors/liftbridge/idle_pauses.py", "_pause"): "the clock of idle partitions",
    ("doors/liftbridge/nats/figures.py", "tell_figures"): "counts of the door itself",
    ("doors/handshake_counts.py", "tell_handshakes"): "counts of the door itself",
    ("doors/liftbridge/serving.py", "load"): "the start of the door",
    (TASKS, "_server"): "makes the identity; its users are above",
    (TASKS, "_change"): "makes the change; its users are above and below",
    (TASKS, "prepare"): "the start of the door: the namespace of the settings",
    (TASKS, "_make_own"): "the start of the door: streams of the server itself",
    (TASKS, "expire_member"): "the clock of members that are silent",
    ("service/producers.py", "expire_producers"): "the clock of producers",
    ("service/tokens.py", "clean_expired_tokens"): "the clock of tokens",
}
Place = tuple[str, str]


def functions(tree: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """The innermost functions first: a line belongs to the first that has it."""
    found = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    yield from ((each.name, each) for each in sorted(found, key=lambda each: -each.lineno))


def acts(file: str, source: str) -> dict[Place, list[tuple[str, bool]]]:
    """By place: what is done there, and whether its question stands before it."""
    lines, found = source.splitlines(), dict[Place, list[tuple[str, bool]]]()
    homes = [(name, node.lineno, node.end_lineno) for name, node in functions(ast.parse(source))]  # type: ignore[attr-defined]
    for number, line in enumerate(lines, 1):
        for kind in (kind for kind, (at, act) in ACTS.items() if file.startswith(at) and act.search(line)):
            name, first, _ = next((home for home in homes if home[1] <= number <= home[2]), ("", 1, 0))
            question = ASKED.get((file, name), "")
            asks = bool(question) and question in "\n".join(lines[first:number])
            found.setdefault((file, name), []).append((kind, asks))
    return found


@pytest.fixture(scope="module")
def found() -> dict[Place, list[tuple[str, bool]]]:
    paths = [path for package in PACKAGES for path in sorted((SHARDD / package).rglob("*.py"))]
    places: dict[Place, list[tuple[str, bool]]] = {}
    for path in paths:
        places |= acts(str(path.relative_to(SHARDD)), path.read_text())
    return places


def faults(places: dict[Place, list[tuple[str, bool]]]) -> list[str]:
    explained = ASKED_ELSEWHERE.keys() | NO_CALLER.keys()
    return [
        f"{file} {name}: {kind} without a question"
        for (file, name), done in sorted(places.items())
        for kind, asks in done
        if not asks and (file, name) not in explained
    ]


def test_each_act_in_the_servers_name_is_asked_about_or_has_no_caller(
    found: dict[Place, list[tuple[str, bool]]],
) -> None:
    assert not faults(found)


def test_each_place_that_is_named_is_there(found: dict[Place, list[tuple[str, bool]]]) -> None:
    assert [*ASKED, *ASKED_ELSEWHERE, *NO_CALLER] == [
        place for place in [*ASKED, *ASKED_ELSEWHERE, *NO_CALLER] if place in found
    ]
    kinds = {kind for done in found.values() for kind, _ in done}
    assert kinds == ACTS.keys()


PLANTED: Final = """
class NatsLink:
    def announce(self, subject, payload):
        self._send(subject, payload, Loss.PUBLISHES)
        self._outward.takes_stored(subject)

    def sneak(self, subject, payload):
        self._send(subject, payload, Loss.PUBLISHES)
"""


def test_new_act_without_a_question_and_one_that_asks_too_late_are_found() -> None:
    assert faults(acts(LINK, PLANTED)) == [
        f"{LINK} announce: a message to a NATS server without a question",
        f"{LINK} sneak: a message to a NATS server without a question",
    ]
    assert faults(
        acts("doors/http/new.py", "async def new(call):\n    await call.door.task('pause_partitions')\n")
    ) == ["doors/http/new.py new: a task of a door without a question"]
