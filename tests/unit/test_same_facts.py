"""What is said twice says the same: numbers of the native core against the protocol in Python, which clients have
without the core. What has one home only: test_one_home.py.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from shardd.config.cpus import SHARDS_MAX
from shardd.config.proxies import Proxies
from shardd.config.schema import ACK_LEVELS
from shardd.engine import _native, twin, twin_record
from shardd.log import blocks, imported, incarnation, manifest, offsets_table
from shardd.metadata.validate import SLOTS_MAX
from shardd.protocol import limits, record_layout, replies
from shardd.protocol.catalogue import COMMANDS
from shardd.protocol.codes import Code
from shardd.protocol.command_entry import CommandEntry
from shardd.protocol.errors import Status
from shardd.protocol.extensions import ExtensionCode
from shardd.protocol.iggy09 import SYNC_CONSUMER_GROUP
from shardd.protocol.primitives import ConsumerKind, PollingKind
from shardd.protocol.send_request import PartitioningKind
from shardd.server import shared_resources
from shardd.spark import _decode
from shardd.worker.partitions import LEVELS

NATIVE_MODULES = [_native, _decode]
NATIVE = Path(__file__).parents[2] / "native" / "src"
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)


def named_numbers(prefix: str) -> dict[str, int]:
    """Enumerators of the core with an explicit number, and macros that are one."""
    pattern = re.compile(rf"\b{prefix}_([A-Z0-9_]+)(?:\s*=\s*|\s+)(0x[0-9a-f]+|[0-9]+)u?\b")
    found: dict[str, int] = {}
    for path in sorted(NATIVE.rglob("*.[ch]")):
        for name, number in pattern.findall(_COMMENT.sub("", path.read_text())):
            assert found.setdefault(name, int(number, 0)) == int(number, 0), f"{prefix}_{name} has two numbers"
    return found


def statuses_of_the_core() -> dict[str, int]:
    return {
        name.removeprefix("STATUS_"): number for name, number in vars(_native).items() if name.startswith("STATUS_")
    }


def stub_nodes(module: ModuleType) -> list[ast.stmt]:
    """Of a native module; some of what `_native` has stands in a stub of its own."""
    stub = Path(str(module.__file__)).parent / f"{module.__name__.rpartition('.')[2]}.pyi"
    stubs = [stub, stub.with_name(f"{stub.stem}_types.pyi")]
    return [node for each in stubs if each.exists() for node in ast.parse(each.read_text()).body]


def c_code(*directories: str) -> dict[str, str]:
    """File -> what stands in it outside of comments."""
    root = NATIVE.parent
    files = [path for directory in directories for path in sorted((root / directory).rglob("*.[ch]"))]
    return {str(path.relative_to(root)): _COMMENT.sub("", path.read_text()) for path in files}


def test_every_status_of_the_core_has_the_number_of_its_name_in_the_one_taxonomy() -> None:
    core = statuses_of_the_core()
    assert len(core) >= 30
    assert {name: Status.__members__.get(name) for name in core} == core
    assert len(set(core.values())) == len(core)


def test_the_table_of_statuses_has_what_the_core_gives_and_nothing_else() -> None:
    code = c_code("src", "binding")
    table = code.pop("src/base/status.h")
    assert dict(re.findall(r"X\((\w+), (\d+)\)", table)).keys() == statuses_of_the_core().keys()
    given = {name for text in code.values() for name in re.findall(r"\bSTATUS_([A-Z_]+)\b", text)} - {"TABLE"}
    assert given == statuses_of_the_core().keys()


def test_no_other_file_says_the_number_of_a_status() -> None:
    """Numbers that are nothing else: the small and the round ones have many meanings."""
    numbers = {int(status) for status in Status if status > 1000 and status % 1000 > 1} | {10001, 11001, 12001}
    core = {
        f"native/{name}: {number}"
        for name, text in c_code("src", "binding").items()
        if name != "src/base/status.h"
        for number in re.findall(r"(?<![\w.])\d+(?![\w.])", text)
        if int(number) in numbers
    }
    package = Path(_native.__file__).parents[1]
    client = package / "client" / "statuses.py"  # a distribution of its own; tests/client compares it
    python = {
        f"shardd/{path.relative_to(package)}: {node.value}"
        for path in package.rglob("*.py")
        if path not in (package / "protocol" / "errors.py", client)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and type(node.value) is int and node.value in numbers
    }
    assert not core | python


@pytest.mark.parametrize("module", NATIVE_MODULES)
def test_the_stub_names_every_constant_of_the_core_and_no_other(module: ModuleType) -> None:
    said = {
        node.target.id
        for node in stub_nodes(module)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    assert said == {name for name, value in vars(module).items() if isinstance(value, int) and name.isupper()}


def test_commands_of_the_core_have_the_codes_of_the_protocol() -> None:
    core = named_numbers("CODE")
    assert len(core) >= 5
    known = {each.name: int(each) for each in (*Code, *ExtensionCode)}
    assert {name: known.get(name) for name in core} == core


def frame_limits() -> dict[str, int]:
    """Command -> the most bytes of its payload, as `frame_limit()` of the core has them; "": of all others."""
    head, table = (_COMMENT.sub("", (NATIVE / "wire" / f"frame_limits.{end}").read_text()) for end in "hc")
    macros = re.findall(r"#define (FRAME_\w+_MAX) \(?(\d+)u(?: << (\d+)u?\))?", head)
    numbers = {name: int(number) << int(shift or 0) for name, number, shift in macros}
    found, waiting = dict[str, int](), list[str]()
    for case, default, macro in re.findall(r"case CODE_(\w+):|(default):|return (FRAME_\w+);", table):
        if macro:
            found |= dict.fromkeys(waiting, numbers[macro])
            waiting = []
        else:
            waiting.append("" if default else case)
    return found


def wrong_limits(core: dict[str, int], rows: Mapping[int, CommandEntry[Any, Any]]) -> set[str]:
    said = {entry.code.name: entry.payload_bytes_max for entry in rows.values()}
    return core.keys() - said.keys() - {""} | {name for name in said if said[name] != core.get(name, core[""])}


def test_payloads_may_be_as_long_as_the_catalogue_says() -> None:
    core = frame_limits()
    assert len(core) == 9
    assert not wrong_limits(core, COMMANDS)
    assert wrong_limits(core | {"CREATE_USER": 4096}, COMMANDS) == {"CREATE_USER"}
    assert wrong_limits(core | {"": 4095}, COMMANDS) >= {"GET_TOPIC"}


def operations() -> dict[int, int]:
    """Operation of 0.9 -> code, as `code_of()` of the core has them."""
    text = _COMMENT.sub("", (NATIVE / "wire" / "iggy09.c").read_text())
    metadata = re.search(r"metadata\[\] = \{([^}]*)\}", text)
    assert metadata is not None
    found = dict(enumerate(map(int, metadata[1].split(",")), 128))
    codes, numbers = named_numbers("CODE"), named_numbers("IGGY09")
    for name, code in re.findall(r"operation == IGGY09_(\w+)\) return (\w+);", text):
        found[numbers[name]] = int(code) if code.isdecimal() else codes[code.removeprefix("CODE_")]
    return found


def test_operations_of_the_core_are_those_of_the_catalogue() -> None:
    rows = {entry.operation: code for code, entry in COMMANDS.items() if entry.operation}
    core = operations()
    assert len(core) == 26 and core == rows
    assert core | {141: 34} != rows


LOAD_NAMES = {
    "LOGIN": "LOGIN_USER",
    "POLL": "POLL_MESSAGES",
    "SEND": "SEND_MESSAGES",
    "STORE_OFFSET": "STORE_CONSUMER_OFFSET",
    "JOIN_GROUP": "JOIN_CONSUMER_GROUP",
}


def test_the_load_generator_has_the_codes_of_the_protocol() -> None:
    text = _COMMENT.sub("", (NATIVE.parent / "load" / "wire.h").read_text())
    said = {LOAD_NAMES.get(name, name): int(code) for name, code in re.findall(r"\bCODE_(\w+) = (\d+)", text)}
    assert said.pop("SYNC_GROUP") == SYNC_CONSUMER_GROUP
    assert len(said) >= 5
    assert said == {name: int(Code[name]) for name in said}


def test_kinds_of_polls_and_consumers_are_those_of_the_wire() -> None:
    assert {each.name: int(each) for each in PollingKind}.items() <= named_numbers("POLL").items()
    assert (_native.OFFSET_CONSUMER, _native.OFFSET_GROUP) == (ConsumerKind.CONSUMER, ConsumerKind.GROUP)
    assert (offsets_table.OFFSET_CONSUMER, offsets_table.OFFSET_GROUP) == (1, 2)


def test_kinds_of_partitioning_are_those_of_the_wire() -> None:
    core = named_numbers("PARTITIONING")
    assert core == {"BALANCED": 1, "PARTITION_ID": 2, "MESSAGES_KEY": 3}
    assert core == {name: getattr(twin, f"PARTITIONING_{name}") for name in core}
    assert sorted(core.values()) == sorted(PartitioningKind)


def test_limits_of_messages_and_frames_are_the_same() -> None:
    assert named_numbers("FRAME")["HEADER_SIZE"] == replies.FRAME_HEAD.size
    assert _native.PAYLOAD_SIZE_MAX == limits.MESSAGE_PAYLOAD_BYTES_MAX == twin_record.PAYLOAD_MAX
    assert _native.USER_HEADERS_SIZE_MAX == limits.USER_HEADERS_BYTES_MAX == twin_record.USER_HEADERS_MAX
    assert _native.RECORD_HEADER_SIZE == twin_record.HEADER_BYTES
    assert _native.INDEX_ENTRY_SIZE == record_layout.INDEX_ENTRY.size == twin_record.INDEX_ENTRY.size
    assert named_numbers("FRAME")["CONTROL_MAX"] == limits.CONTROL_PAYLOAD_BYTES_MAX


def test_descriptors_that_are_planned_are_the_same() -> None:
    assert named_numbers("DESCRIPTORS")["RESERVED"] == shared_resources.FILES_RESERVE
    assert named_numbers("INTRODUCTIONS")["MAX"] == shared_resources.INTRODUCTIONS_MAX
    networks = ("10.0.0.0/8",)
    settings = Proxies(), Proxies(networks, http=True), Proxies(networks, tcp=True), Proxies(networks, websocket=True)
    wanted = [shared_resources.descriptors_wanted(100, each) for each in settings]
    assert wanted == [1124, 1124, 2148, 2148]


def test_layouts_and_sizes_of_tables_are_the_same() -> None:
    assert named_numbers("MANIFEST_LAYOUT") == {
        "PLAIN": record_layout.LAYOUT_PLAIN,
        "SPARSE": record_layout.LAYOUT_SPARSE,
        "COMPRESSED": record_layout.LAYOUT_COMPRESSED,
    }
    assert named_numbers("BLOCK")["PLAIN_BYTES"] == blocks.BLOCK_BYTES
    assert (named_numbers("BLOCKS")["HEAD_SIZE"], named_numbers("BLOCKS")["ENTRY_SIZE"]) == (
        blocks.HEAD_BYTES,
        blocks.ENTRY_BYTES,
    )
    assert {name.lower(): number for name, number in named_numbers("CODEC").items()} == blocks.CODECS
    shared = named_numbers("SHARED")
    assert (shared["STATS_SLOTS"], shared["SHARDS_MAX"]) == (SLOTS_MAX, SHARDS_MAX)


OF_THE_CORE_ALONE = b"SHRDPROD"  # the file of producers (native/src/log/producers.h): Python never opens one


def test_files_begin_with_the_same_magic() -> None:
    core = {text.encode() for code in c_code("src").values() for text in re.findall(r'"(SHRD[A-Z0-9]{4})"', code)}
    assert core - {OF_THE_CORE_ALONE} | {blocks.MAGIC} == {
        blocks.MAGIC,
        manifest.MAGIC,
        incarnation.MAGIC,
        imported.MAGIC,
        offsets_table.MAGIC,
    }


def test_every_level_that_can_be_set_is_one_of_the_core() -> None:
    assert set(LEVELS) == set(ACK_LEVELS)
    assert sorted(LEVELS.values()) == [0, 1, 2]


@pytest.mark.parametrize("module", NATIVE_MODULES)
def test_results_of_the_core_have_the_fields_that_the_types_say(module: ModuleType) -> None:
    """Struct sequences: the stub is what mypy believes, the C table is what there is."""
    said = {
        node.name: [
            each.target.id
            for each in node.body
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
        ]
        for node in stub_nodes(module)
        if isinstance(node, ast.ClassDef) and node.bases
    }
    made = {name: kind for name, kind in vars(module).items() if isinstance(kind, type) and issubclass(kind, tuple)}
    assert said.keys() == made.keys() != set()
    for name, kind in made.items():
        fields, values = said[name], list(range(len(said[name])))
        one = kind(values)
        assert list(one) == values and [getattr(one, field) for field in fields] == values


@pytest.mark.parametrize("module", NATIVE_MODULES)
def test_no_function_of_the_core_takes_or_returns_a_tuple_of_many_places(module: ModuleType) -> None:
    """A pair can be read without names."""
    functions = [
        node for statement in stub_nodes(module) for node in ast.walk(statement) if isinstance(node, ast.FunctionDef)
    ]
    assert functions
    wide = {
        function.name
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Name)
        and node.value.id == "tuple"
        and isinstance(node.slice, ast.Tuple)
        and len(node.slice.elts) > 2
    }
    assert not wide
