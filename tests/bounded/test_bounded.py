"""The battery of `make bounded` on a small server: every command is in it, and no step holds a loop for long."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from shardd.dispatch.door.commands import _liftbridge_functions
from shardd.dispatch.door.tasks import task_table
from shardd.protocol.codes import Code
from shardd.protocol.extensions import ExtensionCode
from shardd.runtime.loop_watch import LIMIT_MS
from tests.bounded import world
from tests.bounded.battery import Row, Step, run
from tests.bounded.questions import liftbridge_questions, questions

pytestmark = pytest.mark.usefixtures("hashes_as_served")

LIMIT_OF_A_BUSY_MACHINE_MS = 10 * LIMIT_MS  # caches are shared with whatever else runs


def test_every_command_is_asked() -> None:
    asked = {each.code for each in questions(world.SHORT)}
    missing = [each.name for each in (*Code, *ExtensionCode) if each not in asked]
    assert not missing, f"tests/bounded/questions.py does not ask {', '.join(missing)}"


def test_a_small_server_answers_every_command_in_short_steps(tmp_path: Path) -> None:
    rows = run(tmp_path, world.SHORT, LIMIT_OF_A_BUSY_MACHINE_MS, lambda row: None)
    assert not [row for row in rows if row.refused]
    named = {row.name for row in rows if any(step.name == row.name for step in row.steps)}
    assert {"GET_ME", "GET_TOPIC", "CREATE_TOPIC"} <= named, "every step of the requests is measured, short ones, too"


def test_a_step_that_is_too_long_is_marked() -> None:
    long, refused = Row("A", "", [Step("A", 0, LIMIT_MS * 1000 + 1)]), Row("B", "", [], refused="command 1: status 2")
    assert [each.good for each in (long, refused, Row("C", "", []))] == [False, False, True]
    assert str(long).startswith("!") and "status 2" in str(refused)


def test_every_command_and_task_of_liftbridge_is_asked() -> None:
    asked = {each.name for each in liftbridge_questions(world.SHORT)}
    tasks, commands = inspect.getsource(task_table), inspect.getsource(_liftbridge_functions)
    known = {f"task:{name}" for name in re.findall(r'"(\w+)": ', tasks)}
    assert known | set(re.findall(r'"(liftbridge_\w+)"', commands)) == asked
