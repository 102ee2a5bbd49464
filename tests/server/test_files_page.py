"""docs/files.md has a row for every file of a data directory, and every row names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

from tests.support.every_file import ENV, fill
from tests.support.server import Server

PROJECT: Final = Path(__file__).parents[2]
PAGE: Final = PROJECT / "docs" / "files.md"
SHORT: Final = {"P": "streams/<a>/topics/<a>/partitions/<a>", "E": "archive/spool/<a>/<a>/<a>/<a>"}
# Rows without a file here: of imports, of damage, of doors, of another kind of network, of a moment.
SOMETIMES: Final = {
    "state.messages.torn[.n]", "access.key", "runtime/liftbridge.nats-password", "trash/<name>",
    "archive/incoming/<name>", "E/ACK", "E/imported", "E/<start>.blocks", "P/imported", "P/<start>.torn[.n]",
    "P/producers.unreadable", "P/offsets/<kind>/<id>", "P/offsets.imported/<name>", "P.unmarked[.n]/<name>",
    "state/<name>", "streams/liftbridge.import/<name>", ".sockets/<number>", "<any>.tmp",
}  # fmt: skip


class Row(NamedTuple):
    """`name` as the page has it."""

    name: str
    cells: list[str]

    def matches(self, path: str) -> bool:
        """Of a path below the data directory."""
        pattern = re.sub(r"^[PE](?=[/.])", lambda found: SHORT[found[0]], self.name)
        pieces = re.split(r"(<start>|<any>|<name>$|<[^>]+>|\[\.n\])", pattern)
        kinds = {"<start>": "[0-9]{20}", "<any>": ".+", "<name>": ".+", "[.n]": r"(\.[0-9]+)?"}
        expression = "".join(
            kinds.get(piece, "[^/]+" if piece.startswith("<") else re.escape(piece)) for piece in pieces
        )
        return re.fullmatch(expression, path) is not None


def rows() -> list[Row]:
    found = []
    for line in PAGE.read_text().splitlines():
        if line.startswith("| `"):
            cells = [cell.strip() for cell in line.strip("|").split(" | ")]
            assert len(cells) == 7, line
            found.append(Row(cells[0].strip("` "), cells))
    return found


def test_every_file_of_a_running_server_is_in_the_table(tmp_path: Path) -> None:
    with Server(tmp_path / "data", env=ENV) as server:
        fill(server)
        data = server.data_dir
        files = [str(each.relative_to(data)) for each in data.rglob("*") if not each.is_dir()]
    assert len(files) > 40
    table = rows()
    unknown = {path for path in files if not any(row.matches(path) for row in table)}
    assert unknown == set()
    twice = {path for path in files if sum(row.matches(path) for row in table) > 1 and not path.endswith(".tmp")}
    assert twice == set()
    unseen = {row.name for row in table if not any(row.matches(path) for path in files)}
    assert unseen <= SOMETIMES


def test_the_table_finds_a_file_without_a_row() -> None:
    names = ("state.messages2", "P/extra", "streams/0/topics/0/partitions/0/extra", "archive/spool/1/1/1/1/more")
    assert not [name for name in names if any(row.matches(name) for row in rows())]


def test_every_row_names_tests_that_exist() -> None:
    table = rows()
    assert {row.name for row in table} >= SOMETIMES
    for row in table:
        tests = re.findall(r"[\w/]+\.py", row.cells[-1])
        assert tests, row.name
        assert all((PROJECT / "tests" / each).is_file() for each in tests), row
