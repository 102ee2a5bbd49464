"""The catalogue of commands: a row for each code, and what else says something of a command agrees with the rows."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
import typing
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import partial
from pathlib import Path
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, Final, cast, get_args, get_origin

import msgspec
import pytest
from immutables import Map
from msgspec.structs import replace

from shardd.dispatch.classic.commands import Commands, command_table, door_table
from shardd.dispatch.door.commands import REFUSED, answer_bytes
from shardd.dispatch.door.commands import command_table as door_commands
from shardd.protocol import bounds, catalogue, permissions
from shardd.protocol.account_requests import CreateUserRequest, SnapshotType
from shardd.protocol.catalogue import COMMANDS, EXTENSIONS
from shardd.protocol.codes import Code
from shardd.protocol.command_entry import SHORT_ANSWER_BYTES, SMALL_BYTES, CommandEntry, Repeat
from shardd.protocol.door_frames import Command as CommandFrame
from shardd.protocol.errors import ShardError
from shardd.protocol.extensions import DoorCode, ExtensionCode
from shardd.protocol.reply_forms import empty
from shardd.protocol.requests import Login
from shardd.protocol.topic_settings import SetTopicSettings
from shardd.service import services
from shardd.service.groups import ByEngine
from shardd.service.services import Services

ROOT: Final = Path(__file__).parents[2]
Rows = Mapping[int, CommandEntry[Any, Any]]
MEMBERS: Final = (*Code, *ExtensionCode, *DoorCode)


def classes_of_services() -> Services:
    """`self.streams = StreamService(...)`: the class alone, as tables name its functions and call none."""
    [made] = ast.parse(textwrap.dedent(inspect.getsource(Services.__init__))).body
    classes = {
        node.targets[0].attr: getattr(services, node.value.func.id)
        for node in ast.walk(made)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute)
        if isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name)
    }
    return cast(Services, SimpleNamespace(**classes))


SERVICES: Final = classes_of_services()


def changed(row: int, **fields: Any) -> Rows:
    """The catalogue with a fault in one row."""
    return {**COMMANDS, row: replace(COMMANDS[row], **fields)}


# ---- rows ----


def wrong_rows(rows: Rows, members: Iterable[Code | ExtensionCode | DoorCode]) -> set[str]:
    """Members without a row of their name and code, and rows without a member."""
    wanted = {int(each): each.name.lower() for each in members}
    return {str(pair) for pair in wanted.items() ^ {code: entry.name for code, entry in rows.items()}.items()}


def test_each_code_has_a_row_under_its_name() -> None:
    assert not wrong_rows(COMMANDS, MEMBERS)
    assert {each.name for each in MEMBERS if getattr(catalogue, each.name).code is each} == {e.name for e in MEMBERS}


def test_a_missing_row_and_a_row_with_another_code_are_found() -> None:
    without = {code: entry for code, entry in COMMANDS.items() if code != Code.GET_TOPIC}
    assert wrong_rows(without, MEMBERS) == {"(300, 'get_topic')"}
    assert len(wrong_rows(changed(300, code=Code.GET_TOPICS), MEMBERS)) == 2


def twice(rows: Rows, field: str) -> set[Any]:
    values = [getattr(entry, field) for entry in rows.values()]
    return {value for value in values if value and values.count(value) > 1}


def test_no_two_rows_have_the_same_name_or_operation() -> None:
    assert not twice(COMMANDS, "name") | twice(COMMANDS, "operation")
    assert twice(changed(Code.CREATE_USER, operation=128), "operation") == {128}
    assert twice(changed(Code.CREATE_USER, code=Code.GET_USER), "name") == {"get_user"}


def wrong_versions(rows: Rows) -> set[str]:
    return {entry.name for entry in rows.values() if bool(entry.version) != isinstance(entry.code, ExtensionCode)}


def test_extensions_alone_have_a_version_and_are_listed() -> None:
    assert not wrong_versions(COMMANDS)
    assert {each.code for each in EXTENSIONS} == {int(each) for each in ExtensionCode}
    assert wrong_versions(changed(Code.PING, version=1)) == {"ping"}
    assert wrong_versions(changed(ExtensionCode.SEND_ONCE, version=0)) == {"send_once"}


def test_requests_that_a_field_makes_repeatable_are_known() -> None:
    by_request = {entry.code for entry in COMMANDS.values() if entry.repeat is Repeat.BY_REQUEST}
    polls = {Code.POLL_MESSAGES, ExtensionCode.POLL_AND_WAIT, ExtensionCode.POLL_POSITION}  # not with auto_commit
    assert by_request == polls | {DoorCode.POLL_RANGE, ExtensionCode.INIT_PRODUCER, ExtensionCode.UNUSED_OFFSETS}


# ---- services ----


def hints(execute: Any) -> dict[str, Any]:
    return typing.get_type_hints(execute.func if isinstance(execute, partial) else execute)


def wrong_services(rows: Rows, table: Commands) -> set[str]:
    """Commands of connections without a service that takes their request."""
    in_table = {code for code, entry in rows.items() if not entry.in_engine and not entry.doors}
    return services_that_differ(rows, table, in_table)


def services_that_differ(rows: Rows, table: Commands, in_table: set[int]) -> set[str]:
    faults = {f"{code} has no service, or no row" for code in in_table ^ table.keys()}
    for code in in_table & table.keys():
        said = hints(table[code].execute)["request"]
        if said is not rows[code].request and not issubclass(rows[code].request, said):
            faults.add(f"{rows[code].name} takes {said.__name__}")
    return faults


def test_the_classic_table_has_a_service_that_takes_the_request_of_each_row() -> None:
    table = command_table(SERVICES)
    assert len(table) == len(Code) + len(ExtensionCode) - 3
    assert not wrong_services(COMMANDS, table)


def test_the_table_of_doors_has_a_service_for_each_of_their_commands_and_for_sends() -> None:
    wanted = {code for code, entry in COMMANDS.items() if entry.doors} | {Code.SEND_MESSAGES}
    assert not services_that_differ(COMMANDS, door_table(SERVICES), wanted)
    assert len(services_that_differ(COMMANDS, door_table(SERVICES), wanted | {Code.PING})) == 1
    faulty = changed(DoorCode.POLL_RANGE, request=Login)
    assert services_that_differ(faulty, door_table(SERVICES), wanted) == {"poll_range takes PollMessages"}


def test_a_row_with_another_request_and_a_row_without_a_service_are_found() -> None:
    table = command_table(SERVICES)
    assert wrong_services(changed(Code.GET_TOPIC, request=Login), table) == {"get_topic takes TopicRequest"}
    assert wrong_services(changed(Code.GET_TOPIC, in_engine=True), table) == {"300 has no service, or no row"}


def form_of(said: Any) -> str:
    """How the value of a service is written, by its type."""
    parts = {*get_args(said)} - {ByEngine} if get_origin(said) in (UnionType, typing.Union) else {said}
    if parts == {NoneType}:
        return "empty"
    if NoneType in parts:
        return "optional"
    return "list" if all(get_origin(part) is list for part in parts) else "one"


def form_of_row(entry: CommandEntry[Any, Any]) -> str:
    """The same by what the reply of the row makes of an empty payload."""
    if entry.reply is empty:
        return "empty"
    try:
        return {None: "optional", b"": "one"}.get(entry.reply(b""), "") if entry.reply(b"") != [] else "list"
    except ShardError:
        return "one"


WITH_A_COUNT: Final = {ExtensionCode.GET_PARTITION_BOUNDS}  # lists that say how long they are


def wrong_forms(rows: Rows, table: Commands) -> set[str]:
    return {
        entry.name
        for code, command in table.items()
        if (entry := rows[code]).code not in WITH_A_COUNT
        and form_of(hints(command.execute)["return"]) != form_of_row(entry)
    }


def test_the_form_of_each_reply_is_that_of_what_the_service_returns() -> None:
    assert not wrong_forms(COMMANDS, command_table(SERVICES) | door_table(SERVICES))


def test_a_list_where_the_service_finds_one_or_nothing_is_found() -> None:
    faulty = changed(Code.GET_TOPIC, reply=COMMANDS[Code.GET_TOPICS].reply)
    assert wrong_forms(faulty, command_table(SERVICES)) == {"get_topic"}


# ---- bounds ----


def longest(kind: Any) -> Any:
    """A request of the type with the longest names that there are."""
    if isinstance(kind, type) and issubclass(kind, Enum):
        return next(iter(kind))
    if get_origin(kind) is tuple:
        return (SnapshotType.SERVER_LOGS,) * 255
    if get_origin(kind) in (UnionType, typing.Union):
        return longest(str if str in get_args(kind) else get_args(kind)[0])
    if hasattr(kind, "__struct_fields__"):
        said = typing.get_type_hints(kind)
        unbounded = {"version", "context"} if kind is Login else set()
        return kind(**{name: "" if name in unbounded else longest(said[name]) for name in kind.__struct_fields__})
    values: dict[type, object] = {str: "x" * 255, int: 1, bool: True}
    return values[kind]


def too_long(rows: Rows) -> set[str]:
    """Small commands whose request may have more bytes than the row says."""
    small = [entry for entry in rows.values() if entry.payload_bytes_max <= SMALL_BYTES]
    return {entry.name for entry in small if len(longest(entry.request).encode()) > entry.payload_bytes_max}


def test_the_longest_request_fits_into_what_its_row_takes() -> None:
    assert not too_long(COMMANDS)
    assert too_long(changed(Code.CHANGE_PASSWORD, payload_bytes_max=768)) == {"change_password"}


def longest_lists() -> dict[int, bytes]:
    """Requests with lists, as long as they may be."""
    name = "x" * 255
    topics = (bounds.TopicSelection(name, name, (*range(10),)),) * bounds.TOPICS_MAX
    streams = Map({number: permissions.StreamPermissions() for number in range(permissions.ENTRIES_MAX)})
    return {
        ExtensionCode.SET_TOPIC_SETTINGS: SetTopicSettings(name, name, ((name, name),) * 64).encode(),
        ExtensionCode.GET_PARTITION_BOUNDS: bounds.GetPartitionBounds(topics).encode(),
        Code.CREATE_USER: CreateUserRequest(name, name, 1, permissions.Permissions(streams=streams)).encode(),
    }


def test_the_longest_list_fits_into_what_its_row_takes() -> None:
    lists = longest_lists()
    assert not {code for code, payload in lists.items() if len(payload) > COMMANDS[code].payload_bytes_max}
    assert {code for code, payload in lists.items() if len(payload) > SMALL_BYTES} == lists.keys()


def wrong_room(rows: Rows) -> set[str]:
    """Commands that doors have by name, with another room for the answer than the row says."""
    offered = {entry.name: entry for entry in rows.values() if entry.name in door_commands(SERVICES)}
    assert len(offered) == 52
    frames = {name: CommandFrame(1, name, msgspec.Raw()) for name in offered}
    return {name for name, frame in frames.items() if answer_bytes(frame) != offered[name].answer_bytes}


def test_doors_keep_free_what_the_row_says() -> None:
    assert not wrong_room(COMMANDS)
    assert wrong_room(changed(Code.GET_TOPIC, answer_bytes=SHORT_ANSWER_BYTES)) == {"get_topic"}


def test_doors_refuse_what_needs_a_connection() -> None:
    needing = {entry.name for entry in COMMANDS.values() if entry.needs_connection}
    assert needing >= REFUSED and not needing & door_commands(SERVICES).keys()


# ---- documents ----

ROW: Final = re.compile(r"^\| (0x[0-9A-F]{8}|\d+) \| (?:\[(\w+)\]|`(\w+)`)[^|]*\|(?: (\d+) \|)?", re.MULTILINE)


def told(page: str) -> list[tuple[int, str, int]]:
    """(code, name, version) of each row of a table of commands."""
    found = ROW.findall(page)
    return [(int(code, 0), (classic or own).lower(), int(version or 0)) for code, classic, own, version in found]


@pytest.mark.parametrize(("file", "members"), [("protocol/commands.md", Code), ("extensions.md", ExtensionCode)])
def test_documents_list_the_rows(file: str, members: type[Code | ExtensionCode]) -> None:
    page = (ROOT / "docs" / file).read_text()
    wanted = [(entry.code, entry.name, entry.version) for entry in COMMANDS.values() if isinstance(entry.code, members)]
    assert told(page) == wanted
    first = told(page)[0]
    assert told(page.replace(first[1], "other").replace(first[1].upper(), "OTHER")) != wanted


# ---- no tenth table ----

LISTS_OF_CODES: Final = {
    "classic/commands.py",  # code -> service
    "iggy09/commands.py",  # the same, where 0.9 differs
    "legacy/commands.py",  # the same, where an earlier generation differs
    "legacy/requests.py",  # layouts of earlier generations
    "legacy/numbered.py",
    "legacy/generations.py",
    "quic/classic.py",
    "quic/connection.py",
    "migration/iggy_model.py",  # records of another server's log
}
CODES: Final = {"Code", "ExtensionCode", "DoorCode"}


def lists_of_codes(source: str) -> int:
    """Dictionaries, sets, lists and tuples with three codes or more."""
    found = 0
    for node in ast.walk(ast.parse(source)):
        elements = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", [])
        codes = [e for e in elements if isinstance(e, ast.Attribute) and getattr(e.value, "id", "") in CODES]
        found += len(codes) >= 3
    return found


def test_no_other_file_has_a_table_of_commands() -> None:
    files = {path: lists_of_codes(path.read_text()) for path in (ROOT / "shardd").rglob("*.py")}
    assert {"/".join(path.parts[-2:]) for path, count in files.items() if count} == LISTS_OF_CODES


def test_a_table_of_commands_is_found() -> None:
    for table in ("{Code.A: 1, Code.B: 2, Code.C: 3}", "frozenset({Code.A, Code.B, ExtensionCode.C})"):
        assert lists_of_codes(f"T = {table}") == 1
    assert lists_of_codes("T = {Code.A, Code.B}") == 0
