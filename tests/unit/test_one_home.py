"""A fact has one home: numbers, formats and magics that stand in one file of the Python code and nowhere else. What C
and Python both have to say: test_same_facts.py. Tests say it once more on purpose: they are specifications."""

from __future__ import annotations

import ast
import gc
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# The executable specification of the core (shardd/engine/twin.py) says again what it specifies.
TWINS = {"shardd/engine/twin.py", "shardd/engine/twin_record.py"}
# The client imports nothing of the server: its facts are its own, and tests/client/test_codec.py compares both sides.
CLIENT = ROOT / "shardd/client"
LAYOUT = "shardd/protocol/record_layout.py"
LIMITS = "shardd/protocol/limits.py"
NAMESPACES = "shardd/protocol/namespaces.py"


@cache
def modules() -> dict[str, ast.Module]:
    return {
        str(path.relative_to(ROOT)): ast.parse(path.read_text())
        for directory in ("shardd", "bench")
        for path in sorted((ROOT / directory).rglob("*.py"))
        if path.parent != CLIENT
    }


@pytest.fixture(scope="module", autouse=True)
def trees_end_with_the_tests() -> Iterator[None]:
    """A million objects, which each collection of garbage in this process would go through."""
    gc.disable()
    yield
    modules.cache_clear()
    constants.cache_clear()
    gc.enable()


@cache
def constants() -> list[tuple[str, object]]:
    return [
        (name, node.value)
        for name, module in modules().items()
        for node in ast.walk(module)
        if isinstance(node, ast.Constant)
    ]


def files_with(number: int) -> set[str]:
    return {name for name, value in constants() if type(value) is int and value == number}


def struct_formats() -> Iterator[tuple[str, str]]:
    """(file, format) of every call of a function of `struct`."""
    for name, module in modules().items():
        for node in ast.walk(module):
            if not isinstance(node, ast.Call) or not node.args or not isinstance(node.args[0], ast.Constant):
                continue
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in {"Struct", "pack", "pack_into", "unpack", "unpack_from", "iter_unpack", "calcsize"}:
                yield name, str(node.args[0].value)


def test_a_format_of_several_fields_stands_in_one_file() -> None:
    """Pairs are left out: any two numbers look like any other two."""
    equal_by_chance = {
        ("shardd/protocol/extensions.py", "<IIQ"),  # shard, generation, process
        ("shardd/protocol/unused_offsets.py", "<IIQ"),  # partition, first place, age
        ("shardd/protocol/account_replies.py", "<IQB"),  # id, creation, status of a user
        ("shardd/protocol/leases.py", "<IQI"),  # partition, offset, seconds
        ("shardd/protocol/system_replies.py", "<III"),  # stream, topic, group of a membership
        ("shardd/protocol/system_replies.py", "<IQQ"),  # threads, free and whole disk
    }
    homes: dict[str, set[str]] = defaultdict(set)
    for name, form in struct_formats():
        if len(re.findall(r"[a-zA-Z?]", form)) >= 3 and name not in TWINS and (name, form) not in equal_by_chance:
            homes[form].add(name)
    assert len(homes) > 20
    assert homes["<Q16sQQQIIQ"] == homes["<IIQ"] == {LAYOUT}
    twice = {form: sorted(names) for form, names in homes.items() if len(names) > 1}
    assert not twice, "the same layout in several files"


@pytest.mark.parametrize("number", [64_000_000, 10_485_760])
def test_limits_of_messages_and_frames_stand_in_one_file(number: int) -> None:
    assert files_with(number) == {LIMITS}


def test_only_one_file_packs_and_unpacks_namespaces() -> None:
    packing = {
        name
        for name, module in modules().items()
        if name.startswith("shardd/")  # measurements print MiB
        for node in ast.walk(module)
        if isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.LShift | ast.RShift)
        and not isinstance(node.left, ast.Constant)
        and isinstance(node.right, ast.Constant | ast.Name)
        and (getattr(node.right, "value", 0) in {12, 20} or "ID_BITS" in getattr(node.right, "id", ""))
    }
    assert packing == {NAMESPACES}
    assert files_with(0xFFFFF) == set()


def test_codes_of_extensions_stand_in_one_file_and_in_the_tags_of_stored_commands() -> None:
    found = {name for name, value in constants() if type(value) is int and value >> 16 == 0x5344}
    assert found == {"shardd/protocol/extensions.py", "shardd/metadata/commands.py"}


def test_a_magic_stands_in_one_file() -> None:
    homes: dict[bytes, set[str]] = defaultdict(set)
    for name, value in constants():
        if isinstance(value, bytes) and re.fullmatch(rb"SHRD[A-Z0-9]{4}", value):
            homes[value].add(name)
    assert len(homes) >= 5 and all(len(names) == 1 for names in homes.values()), homes


def test_the_levels_are_listed_by_the_configuration_and_mapped_by_the_worker() -> None:
    words: dict[str, set[object]] = defaultdict(set)
    for name, value in constants():
        words[name].add(value)
    # servers that are measured have what comes closest to each
    elsewhere = "shardd/benchmark/servers/"
    levels = {"memory", "written", "durable"}
    found = {name for name, said in words.items() if levels <= said and not name.startswith(elsewhere)}
    assert found == {"shardd/config/schema.py", "shardd/worker/partitions.py"}


@pytest.mark.parametrize("name", ["shardd/spark/server.py", "shardd/spark/archive_server.py"])
def test_the_servers_of_spark_decode_nothing_by_themselves(name: str) -> None:
    nodes = list(ast.walk(modules()[name]))
    called = {node.func.attr for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)}
    assert not called & {"read", "decode", "encode", "unpack", "unpack_from", "from_bytes", "request", "receive"}
    imported = {alias.name for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names}
    assert not imported & {"struct", "Reader", "Code", "ExtensionCode"}
