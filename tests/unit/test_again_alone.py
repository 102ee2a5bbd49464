"""What failed beside the other tests runs once more, alone, and that run decides; a finding never does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import again_alone

ONCE = """
from pathlib import Path
def test_fails_once():
    mark = Path(__file__).with_name("mark")
    there = mark.exists()
    mark.touch()
    assert there
"""
ALWAYS = "def test_fails():\n    assert False\n"


@pytest.mark.parametrize(
    ("folder", "text", "status"),
    [("tests/server", ONCE, 0), ("tests/server", ALWAYS, 1), ("tests/crash", ONCE, 1), ("tests/sim", ALWAYS, 1)],
)
def test_a_second_run_decides_unless_the_first_was_a_finding(
    tmp_path: Path, folder: str, text: str, status: int
) -> None:
    file = tmp_path / folder / "test_it.py"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    assert again_alone.run([folder], root=tmp_path) == status


def test_many_failures_are_not_the_machine() -> None:
    names = [f"tests/server/test_{number}.py::test" for number in range(again_alone.FILES_AGAIN_AT_MOST + 1)]
    assert again_alone.worth_another_run(names[:-1])
    assert again_alone.worth_another_run([f"{names[0]}[{number}]" for number in range(100)])
    assert not again_alone.worth_another_run(names)
    assert not again_alone.worth_another_run([])


def test_every_folder_of_findings_is_there() -> None:
    root = Path(again_alone.__file__).parents[2]
    assert [name for name in again_alone.FINDINGS if not (root / name).is_dir()] == []
