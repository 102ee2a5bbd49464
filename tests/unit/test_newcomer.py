"""The table "Where is ..." of docs/contributing.md answers newcomers: each file defines the name of its row."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

import pytest

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "contributing.md"
HEAD: Final = "| where is ... | file | name |"
ROW: Final = re.compile(r"\| (.+) \| `([^`]+)` \| `([^`]+)` \|")
PYTHON: Final = r"^\s*(?:(?:async )?def|class) {0}\b|^{0}\b.* = "
C: Final = r"^[A-Za-z_][^;{{}}]*\b{0}\([^;{{}}]*\{{|^\}} {0};"


class Answer(NamedTuple):
    question: str
    file: str
    name: str


def answers_of(text: str) -> list[Answer]:
    lines = text.splitlines()
    begin = lines.index(HEAD) + 2  # behind the line of dashes
    answers = []
    for line in lines[begin:]:
        if not line.startswith("|"):
            break
        row = ROW.fullmatch(line)
        assert row is not None, f"not a row of the table: {line}"
        answers.append(Answer(*row.groups()))
    return answers


def defines(file: str, name: str) -> bool:
    path = ROOT / file
    pattern = (PYTHON if path.suffix == ".py" else C).format(re.escape(name))
    return path.is_file() and re.search(pattern, path.read_text(), re.MULTILINE) is not None


@pytest.mark.parametrize("answer", answers_of(PAGE.read_text()), ids=lambda answer: str(answer.name))
def test_a_question_of_a_newcomer_is_answered_by_its_file(answer: Answer) -> None:
    assert defines(answer.file, answer.name), f"{answer.file} does not define {answer.name}: {answer.question}"


def test_the_table_answers_at_least_eight_questions() -> None:
    assert len(answers_of(PAGE.read_text())) >= 8


@pytest.mark.parametrize(
    "wrong",
    [
        Answer("a name that moved", "native/src/core/commit.c", "waiting_polls_wake"),  # called there, not defined
        Answer("a type of another file", "native/src/core/core.h", "core_counters"),
        Answer("a file that moved", "shardd/protocol/records.py", "encode_records"),
        Answer("an imported name", "shardd/doors/liftbridge/publish_batches.py", "encode_records"),
    ],
    ids=lambda wrong: str(wrong.question),
)
def test_a_planted_wrong_answer_is_found(wrong: Answer) -> None:
    assert not defines(wrong.file, wrong.name)
