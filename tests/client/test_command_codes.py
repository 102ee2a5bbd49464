"""The client's table of commands is that of the catalogue, and the client names a command by its row."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from shardd.client import commands, idempotence
from shardd.client.unused_offsets import unused_offsets
from shardd.protocol.catalogue import COMMANDS
from shardd.protocol.codes import Code
from shardd.protocol.command_entry import Repeat
from shardd.protocol.extensions import ExtensionCode
from tests.client.command_codes import COMMAND, FILE, text_of

EXTENSIONS_FROM: Final = 0x5344_0000
OF_THE_SERVER: Final = {"connection.py"}  # stands on the server's codecs


def test_the_file_of_codes_is_made_of_the_catalogue() -> None:
    assert FILE.read_text() == text_of(COMMANDS.values()), f"`{COMMAND}` makes it anew"


def test_a_row_that_has_changed_is_found() -> None:
    row = replace(COMMANDS[Code.CREATE_STREAM], repeat=Repeat.YES)
    assert FILE.read_text() != text_of((COMMANDS | {row.code: row}).values())  # type: ignore[operator]


def test_requests_decide_where_the_catalogue_leaves_it_to_them() -> None:
    decided = {
        (command.code, command.repeatable)
        for command in (
            commands.poll("c", "s", "t"),  # never with auto_commit
            commands.poll("c", "s", "t", wait_ms=1),
            commands.poll("c", "s", "t", bytes_max=1),
            idempotence.init_producer(),
            idempotence.init_producer(1, 2),
            idempotence.init_producer(1, 2, renew=True),
            unused_offsets("s", "t", 0, 0, 0, delete=False),
            unused_offsets("s", "t", 0, 0, 0, delete=True),
        )
    }
    assert decided == {
        (Code.POLL_MESSAGES, True),
        (ExtensionCode.POLL_AND_WAIT, True),
        (ExtensionCode.POLL_POSITION, True),
        (ExtensionCode.INIT_PRODUCER, True),
        (ExtensionCode.INIT_PRODUCER, False),
        (ExtensionCode.UNUSED_OFFSETS, True),
        (ExtensionCode.UNUSED_OFFSETS, False),
    }
    by_request = {code for code, row in COMMANDS.items() if row.repeat is Repeat.BY_REQUEST and not row.doors}
    assert {code for code, _ in decided} == by_request


def codes_by_number(source: str) -> list[int]:
    """Codes of extensions, and the first arguments of commands that are made."""
    nodes = [*ast.walk(ast.parse(source))]
    calls = [node for node in nodes if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Command"]
    constants = [call.args[0] for call in calls if call.args]
    constants += [node for node in nodes if isinstance(node, ast.Constant)]
    numbers = {id(node): node.value for node in constants if isinstance(node, ast.Constant)}
    made = {id(call.args[0]) for call in calls if call.args}
    return [
        number
        for node, number in numbers.items()
        if type(number) is int and (node in made or EXTENSIONS_FROM <= number <= EXTENSIONS_FROM + 0xFF)
    ]


def test_no_other_file_of_the_client_has_a_code_as_a_number() -> None:
    files = {path for path in Path(commands.__file__).parent.glob("*.py") if path != FILE}
    assert not {path.name for path in files if path.name not in OF_THE_SERVER and codes_by_number(path.read_text())}
    assert codes_by_number("Command(300, b'', nothing)") == [300]
    assert codes_by_number("CODE = 0x5344_0013") == [0x5344_0013]
