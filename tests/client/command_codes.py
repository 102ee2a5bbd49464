"""`shardd/client/command_codes.py`, which is made of the catalogue, as the client imports nothing of the server:
`python -m tests.client.command_codes --write` writes it, tests/client/test_command_codes.py compares it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from shardd.protocol.catalogue import COMMANDS
from shardd.protocol.codes import Code
from shardd.protocol.command_entry import CommandEntry, Repeat

FILE: Final = Path(__file__).parents[2] / "shardd" / "client" / "command_codes.py"
COMMAND: Final = "python -m tests.client.command_codes --write"
HEAD: Final = f'''\
"""Commands of the server: code, name, and whether a second execution is as good as one, so that the client may ask
again when no answer came. Made of the catalogue of the server by `{COMMAND}`."""

from __future__ import annotations

from typing import Final, NamedTuple


class CommandCode(NamedTuple):
    """`repeatable`: of each request. Where a field of the request decides, it is False here."""

    code: int
    name: str
    repeatable: bool


'''


def text_of(rows: Iterable[CommandEntry[Any, Any]]) -> str:
    rows = [row for row in rows if not row.doors]
    lines = [
        f'{row.code.name}: Final = CommandCode({_number(row)}, "{row.name}", {row.repeat is Repeat.YES})\n'
        for row in rows
    ]
    names = "".join(f"    {row.code.name},\n" for row in rows)
    return f"{HEAD}{''.join(lines)}\nALL: Final = (\n{names})\n"


def _number(row: CommandEntry[Any, Any]) -> str:
    return str(int(row.code)) if isinstance(row.code, Code) else f"0x{row.code >> 16:04X}_{row.code & 0xFFFF:04X}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.client.command_codes", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the file; without it the text is printed")
    if parser.parse_args().write:
        FILE.write_text(text_of(COMMANDS.values()))
    else:
        sys.stdout.write(text_of(COMMANDS.values()))


if __name__ == "__main__":
    main()
