"""Requests that wait hold nothing that others need: walks over the source of all that carries requests out."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

import pytest

PACKAGE: Final = Path(__file__).parents[2] / "shardd"
SERVICES: Final = ("service", "security")  # what requests are carried out by
PRIMITIVES: Final = {"Lock", "Semaphore", "BoundedSemaphore", "Condition"}


def primitives(tree: ast.AST) -> list[str]:
    """Locks of asyncio that a module makes, or hands to what makes them (`default_factory=asyncio.Lock`)."""
    notes = set[ast.AST]()
    for node in ast.walk(tree):
        for name in ("annotation", "returns"):
            if (note := getattr(node, name, None)) is not None:
                notes.update(ast.walk(note))
    return [
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "asyncio"
        and node.attr in PRIMITIVES
        and node not in notes
    ]


LINES: Final = {
    "doors/liftbridge/live_users.py": (["Lock"], "one question to a worker, whose answer is that of all that wait"),
    "doors/liftbridge/nats/audience.py": (["Lock"], "held for one turn of the loop"),
    "doors/liftbridge/nats/link.py": (["Condition"], "left while its tasks wait; nothing is awaited in it"),
    "doors/liftbridge/registry.py": (["Lock", "Condition"], "as live_users.py; left while its tasks wait"),
    "doors/liftbridge/turns.py": (["Lock"], "changes of one partition of cursors wait for the same device"),
    "doors/quic/connection.py": (["Semaphore", "Lock"], "of one connection"),
    "engine/calls.py": (["Lock"], "held for turns of the loop; tests/unit/test_calls_under_way.py"),
    "groups/hub.py": (["Lock"], "of one group, whose members wait for the same rebalancing"),
    "metadata/replica.py": (["Lock"], "records of shard 0, no requests"),
    "metadata/writer.py": (["Lock"], "one append; requests wait `beside()`: tests/doors/test_waiters_and_places.py"),
    "runtime/helper_threads.py": (
        ["Semaphore"],
        "JOBS_MAX; a line has fewer: tests/doors/test_waiting_holds_nothing.py",
    ),
    "worker/partitions.py": (["Lock"], "records of the metadata and full disks, no requests"),
}
"""Locks outside of the services, by module: what fills them beside a stranger, or why nothing of a stranger waits."""
OF_CLIENTS: Final = ("benchmark/", "cli/", "client/", "spark/")  # programs of users


def test_each_line_of_the_server_is_known() -> None:
    """In groups, doors, transports and everything else that runs in a process of the server."""
    root = Path(__file__).parents[2]
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = str(path.relative_to(PACKAGE))
        if not name.startswith(OF_CLIENTS) and (here := primitives(ast.parse(path.read_text()))):
            found[name] = here
    assert found == {name: here for name, (here, _) in LINES.items()}
    named = [word.strip("`,;") for _, why in LINES.values() for word in why.split() if word.startswith("tests/")]
    assert named and all((root / each).exists() for each in named)


@pytest.mark.parametrize("package", SERVICES)
def test_no_service_has_a_line_in_which_requests_keep_their_places(package: str) -> None:
    """They wait in FairTurns, in a SharedRoom, or in a lock of Slices: all step aside."""
    modules = sorted((PACKAGE / package).rglob("*.py"))
    assert modules
    assert {path.name: found for path in modules if (found := primitives(ast.parse(path.read_text())))} == {}


def test_the_walk_over_services_would_find_a_lock() -> None:
    assert primitives(ast.parse("class A:\n    def __init__(self):\n        self.x = asyncio.Lock()\n")) == ["Lock"]
    assert primitives(ast.parse("class A(Struct):\n    x: asyncio.Lock = field(default_factory=asyncio.Lock)\n")) == [
        "Lock"
    ]
    assert primitives(ast.parse("def f(lock: asyncio.Lock) -> asyncio.Lock: ...\n")) == []


def test_each_change_of_the_metadata_that_a_service_makes_stands_beside() -> None:
    """Whatever it is made for: the device may stand still."""
    found = 0
    elsewhere = {"_resume", "clean_expired_tokens", "expire_producers"}  # passes for which no request waits
    for path in sorted((PACKAGE / "service").rglob("*.py")):
        tree = ast.parse(path.read_text())
        stands, passes = set[ast.AST](), set[ast.AST]()
        for each in ast.walk(tree):
            if isinstance(each, ast.With) and any(ast.unparse(item.context_expr) == "beside()" for item in each.items):
                stands.update(ast.walk(each))
            elif isinstance(each, ast.AsyncFunctionDef) and each.name in elsewhere:
                passes.update(ast.walk(each))
        for each in ast.walk(tree):
            if isinstance(each, ast.Call) and ast.unparse(each.func).endswith("metadata.submit"):
                found += 1
                assert each in stands or each in passes, (
                    f"{path.name}:{each.lineno} waits for the device and keeps its place"
                )
    assert found >= 3


WAITS_OF_THE_ENGINE: Final = (
    ".calls.append",
    ".calls.read",
    ".calls.store_offset",
    "_calls.flush",
    "_calls.store_offset",
    "_calls.delete_offset",
    "_calls.delete_segments",
)


def handed_functions(tree: ast.AST) -> tuple[set[ast.AST], set[str]]:
    """What is below `async with handed_over()`, perhaps under a condition, and the names that are used there: of
    functions that are passed on."""
    below = set[ast.AST]()
    for each in ast.walk(tree):
        if isinstance(each, ast.Call) and "auto_commit=False" in map(ast.unparse, each.keywords):
            below.add(each)  # a read that stores nothing waits for no sync
        if isinstance(each, ast.AsyncWith) and ast.unparse(each.items[0].context_expr).startswith("handed_over()"):
            below.update(ast.walk(each))
    return below, {each.id for each in below if isinstance(each, ast.Name)}


def test_each_answer_of_the_engine_that_may_wait_for_the_device_is_awaited_handed_over() -> None:
    found = 0
    for path in sorted((PACKAGE / "service").rglob("*.py")):
        tree = ast.parse(path.read_text())
        below, names = handed_functions(tree)
        for each in ast.walk(tree):
            if isinstance(each, ast.AsyncFunctionDef) and each.name in names:
                below.update(ast.walk(each))
        for each in ast.walk(tree):
            if isinstance(each, ast.Call) and ast.unparse(each.func).endswith(WAITS_OF_THE_ENGINE):
                found += 1
                assert each in below, f"{path.name}:{each.lineno} waits for the device and keeps its place"
    assert found >= 10
