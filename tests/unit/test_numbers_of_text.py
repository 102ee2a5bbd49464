"""Numbers from outside with thousands of digits, or with digits that are not 0 to 9: a sentence, not a stray error."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shardd.cli.reading import start_of, time_us
from shardd.cli.remote import CommandError
from shardd.cli.whom import way_of
from shardd.client.errors import SettingsError
from shardd.client.positions import strategy_of
from shardd.config.cluster import parse_others
from shardd.config.cpus import check_cpu_allocation
from shardd.config.digits import TOO_LARGE, number_of
from shardd.config.local_socket import parse_users
from shardd.config.units import parse_address, parse_duration_us, parse_size_bytes
from shardd.config.values import parse_count, parse_release
from shardd.dispatch.door.clients import parse_address as parse_client
from shardd.doors.http.message_shapes import _id_of
from shardd.log.file_modes import group_id
from shardd.protocol.errors import ShardError
from shardd.spark.options import RawOptions
from shardd.spark.positions import OptionError, parse_timestamp

PACKAGE = Path(__file__).parents[2] / "shardd"
READERS: dict[str, tuple[Callable[[str], object], type[Exception]]] = {
    "size": (parse_size_bytes, ValueError),
    "size with a unit": (lambda text: parse_size_bytes(f"{text} MiB"), ValueError),
    "duration": (lambda text: parse_duration_us(f"{text} s"), ValueError),
    "address": (lambda text: parse_address(f"127.0.0.1:{text}"), ValueError),
    "cpus": (check_cpu_allocation, ValueError),
    "release": (lambda text: parse_release(f"0.0.{text}"), ValueError),
    "user": (lambda text: parse_users([f"{text}:name"]), ValueError),
    "node": (lambda text: parse_others([{"name": "n", "ip": "i", "ports": {"tcp": text}}]), ValueError),
    "group": (group_id, ValueError),
    "offset": (start_of, CommandError),
    "offset from the end": (lambda text: start_of(f"-{text}"), CommandError),
    "time": (time_us, CommandError),
    "top": (lambda text: way_of(f"host:{text}"), SettingsError),
    "start of a consumer": (lambda text: strategy_of(f"time:{text}"), SettingsError),
    "id of a message": (_id_of, ShardError),
    "client of a door": (lambda text: parse_client(f"127.0.0.1:{text}"), ShardError),
    "option": (lambda text: RawOptions({"n": text}, ["n"], {}).number("n"), OptionError),
    "size of an option": (lambda text: RawOptions({"n": text}, ["n"], {}).size("n", 1), OptionError),
    "timestamp of an option": (lambda text: parse_timestamp("n", text), OptionError),
}
HOSTILE = {"5,000 digits": "9" * 5000, "power": "2\N{SUPERSCRIPT TWO}"}


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_a_number_that_is_no_number_of_64_bits_is_refused_in_its_own_words(
    reader: tuple[Callable[[str], object], type[Exception]], hostile: str
) -> None:
    read, error = reader
    with pytest.raises(error) as raised:
        read(hostile)
    assert "integer string conversion" not in str(raised.value) and "invalid literal" not in str(raised.value)


def test_a_count_of_many_digits_is_beyond_every_bound() -> None:
    assert parse_count("9" * 5000) == TOO_LARGE > (1 << 64) - 1


def test_number_of_text() -> None:
    assert [number_of(text) for text in ("0", "007", str((1 << 64) - 1), "0" * 5000 + "8")] == [0, 7, (1 << 64) - 1, 8]
    assert [number_of(text) for text in ("", " 1", "-1", "1_0", "\N{ARABIC-INDIC DIGIT THREE}", "1.0")] == [None] * 6


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def unbounded(source: str) -> list[str]:
    """Functions that look for digits and make a number of them, however many there are."""
    found = []
    for function in functions(ast.parse(source)):
        code = ast.unparse(function)
        asks = any(f".{name}()" in code for name in ("isdecimal", "isdigit", "isnumeric"))
        if asks and "int(" in code and "len(" not in code:
            found.append(function.name)
    return found


def test_digits_are_counted_before_they_are_a_number() -> None:
    """`shardd.config.digits.number_of` does."""
    wrong = [
        f"{path.relative_to(PACKAGE)}: {name}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for name in unbounded(path.read_text())
    ]
    assert not wrong, "\n".join(wrong)


def test_a_function_that_counts_no_digits_is_found() -> None:
    assert unbounded("def f(text):\n    return int(text) if text.isdigit() else 0") == ["f"]
    assert not unbounded("def f(text):\n    return int(text) if len(text) < 9 and text.isdigit() else 0")
