"""The recorded answers of the released server 0.8.0, scenario by scenario, in order, on one fresh server per file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import golden
from tests.support.server import Server

DATA = Path(__file__).parent / "data"
CLASSIC = tuple(golden.load(DATA / "classic-0.8.0.jsonl.xz"))
SEGMENTS = tuple(golden.load(DATA / "segments-0.8.0.jsonl.xz"))

TOKENS, USERS, GROUPS = frozenset({41, 42, 43, 44}), frozenset(range(31, 38)), frozenset(range(600, 606))
SNAPSHOT, DELETE_SEGMENTS = frozenset({11}), frozenset({503})
LATER = TOKENS | USERS | GROUPS | SNAPSHOT | DELETE_SEGMENTS

# Steps of one scenario that do not lean on each other: those with a later command are left out, all others must fit.
INDEPENDENT = {
    "auth-required": "every command once without a login",
    "malformed-truncated": "every command cut short",
    "malformed-identifiers": "identifiers of users and groups too",
    "malformed-fields": "fields of user, token and group commands too",
    "surplus-bytes": "surplus bytes behind CREATE_USER too",
}
# Scenarios whose later steps need what a later command made: replayed up to the first such command.
UNTIL_LATER = {
    "login-session": "switches to a second user (CREATE_USER)",
    "login-inactive": "needs an inactive user (CREATE_USER)",
    "tokens": "personal access tokens",
    "tokens-per-user": "personal access tokens",
    "tokens-limit": "personal access tokens",
    "users": "user management",
    "users-permission-block": "user management",
    "users-password": "user management",
    "clients": "a second user and groups in the client list",
    "stats": "counts consumer groups",
    "cluster-and-snapshot": "GET_SNAPSHOT",
    "permissions-matrix": "users with permissions",
    "permissions-order": "users with permissions",
    "stream-permissions-cleanup": "users with permissions",
    "groups": "consumer groups",
    "group-assignment-3": "consumer groups",
    "group-assignment-6": "consumer groups",
    "group-disconnect": "consumer groups",
    "group-partition-changes": "consumer groups",
    "group-offsets": "consumer groups",
    "group-current-partition": "consumer groups",
    "group-pending-store": "consumer groups",
    "group-pending-auto-commit": "consumer groups",
    "delete-segments-active": "DELETE_SEGMENTS",
    "root-account": "changes users",
    "numeric-user-name": "needs a second user (CREATE_USER)",
    "manager-of-users": "user management",
    "segments-delete": "DELETE_SEGMENTS",
    "segments-one-big-batch": "DELETE_SEGMENTS at its end",
}


def first_later(scenario: golden.Scenario) -> int | None:
    """Position of the first step with a later command."""
    for position, step in enumerate(scenario.steps):
        if golden.command_code(step) in LATER:
            return position
    return None


def test_the_lists_name_exactly_the_scenarios_with_later_commands() -> None:
    needed = {scenario.name for scenario in (*CLASSIC, *SEGMENTS) if first_later(scenario) is not None}
    assert needed == INDEPENDENT.keys() | UNTIL_LATER.keys()
    assert not INDEPENDENT.keys() & UNTIL_LATER.keys()


def replay(server: Server, scenario: golden.Scenario) -> None:
    steps = scenario.steps
    if scenario.name in UNTIL_LATER:
        steps = steps[: first_later(scenario)]
    shortened = golden.Scenario(scenario.name, scenario.about, scenario.config, steps)
    outcome = golden.Replay(server.address, serves=lambda code: code not in LATER).run(shortened)
    if outcome.differences or scenario.name in UNTIL_LATER:
        golden.delete_all_streams(server.address)
    assert not outcome.copied, f"defects of the reference: {outcome.copied}"
    shown = "\n".join(outcome.differences[:20])
    assert not outcome.differences, f"{len(outcome.differences)} of {outcome.steps} steps differ:\n{shown}"


@pytest.fixture(scope="module")
def classic_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("classic"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def segments_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("segments"), env={"SHARDD_SYSTEM_SEGMENT_SIZE": "5 KiB"})
    server.start()
    yield server
    server.stop()


@pytest.mark.parametrize("scenario", CLASSIC, ids=lambda scenario: scenario.name)
def test_classic_answers_like_the_record(classic_server: Server, scenario: golden.Scenario) -> None:
    replay(classic_server, scenario)


@pytest.mark.parametrize("scenario", SEGMENTS, ids=lambda scenario: scenario.name)
def test_small_segments_answer_like_the_record(segments_server: Server, scenario: golden.Scenario) -> None:
    replay(segments_server, scenario)
