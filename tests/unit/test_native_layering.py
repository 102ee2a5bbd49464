"""Includes and calls of the C core point downwards only (native/README.md), between directories and between files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "native" / "src"
# Lowest first. A file belongs to the longest entry that its path is below.
LAYERS = ["base", "io", "log", "log/partition", "core", "wire", "net", "peer", "engine"]

INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
COMMENT = re.compile(r'/\*.*?\*/|"(?:\\.|[^"\\])*"|//[^\n]*', re.DOTALL)
FUNCTION = re.compile(
    r"^(?!static|typedef|struct|enum|union|#)[A-Za-z_][\w \t*]*?\b(\w+)\([^;{}]*\)\s*\{", re.MULTILINE
)
OBJECT = re.compile(r"^(?!static|typedef|extern)const [\w ]+?\b(\w+)(?:\[[^\]]*\])? = ", re.MULTILINE)
INLINE = re.compile(
    r"^static inline [^;{}]*?\b(\w+)\([^;{}]*\)\s*\{(?:([^\n]*)\}\s*$|\n(.*?)^\})", re.MULTILINE | re.DOTALL
)
ATTRIBUTE = re.compile(r"__attribute__\(\(\w+\)\)")
NAME = re.compile(r"\b[A-Za-z_]\w+\b")

Files = Mapping[str, str]
Arrows = dict[str, set[str]]


def read_sources() -> dict[str, str]:
    return {str(path.relative_to(SOURCE)): path.read_text() for path in sorted(SOURCE.rglob("*.[ch]"))}


def layer(name: str) -> int:
    return LAYERS.index(max((each for each in LAYERS if name.startswith(each + "/")), key=len))


def inline_functions(files: Files) -> dict[str, set[str]]:
    """Each inline function of a header -> the words of its body."""
    headers = (ATTRIBUTE.sub("", COMMENT.sub(" ", text)) for name, text in files.items() if name.endswith(".h"))
    return {
        symbol: set(NAME.findall(line or lines)) for header in headers for symbol, line, lines in INLINE.findall(header)
    }


def with_inlined(words: set[str], inline: Mapping[str, set[str]]) -> set[str]:
    """`words` and those of the inline functions among them, which the compiler puts in their place."""
    found, todo = set(words), list(words)
    while todo:
        more = inline.get(todo.pop(), set()) - found
        found |= more
        todo += more
    return found


def calls(files: Files) -> Arrows:
    """Source file -> other source files whose functions or objects it names, also to keep their address."""
    bare = {name: COMMENT.sub(" ", text) for name, text in files.items() if name.endswith(".c")}
    home = {
        symbol: name
        for name, text in bare.items()
        for pattern in (FUNCTION, OBJECT)
        for symbol in pattern.findall(text)
    }
    inline = inline_functions(files)
    return {
        name: {home[word] for word in with_inlined(set(NAME.findall(text)), inline) if word in home} - {name}
        for name, text in bare.items()
    }


def includes(files: Files) -> Arrows:
    return {name: set(INCLUDE.findall(text)) for name, text in files.items()}


def cycles(arrows: Arrows) -> set[frozenset[str]]:
    """Groups of files of which each reaches each (strongly connected, more than one)."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        todo = [start]
        while todo:
            for other in arrows.get(todo.pop(), ()):
                if other not in seen:
                    seen.add(other)
                    todo.append(other)
        return seen

    reach = {name: reached(name) for name in arrows}
    groups = {frozenset({name} | {other for other in reach[name] if name in reach.get(other, ())}) for name in arrows}
    return {group for group in groups if len(group) > 1}


def upwards(arrows: Arrows) -> list[str]:
    return sorted(
        f"{name} -> {other}" for name, others in arrows.items() for other in others if layer(name) < layer(other)
    )


def test_every_directory_has_its_layer() -> None:
    assert {path.name for path in SOURCE.iterdir() if path.is_dir()} == {name for name in LAYERS if "/" not in name}
    assert all((SOURCE / name).is_dir() for name in LAYERS)


def test_includes_point_downwards() -> None:
    found = includes(read_sources())
    assert not upwards(found)
    assert not cycles({name: others for name, others in found.items() if name.endswith(".h")})


def test_calls_point_downwards() -> None:
    assert not upwards(calls(read_sources()))


def test_files_call_each_other_in_one_direction() -> None:
    assert not [sorted(group) for group in cycles(calls(read_sources()))]


def test_the_core_names_nothing_of_a_wire() -> None:
    words = re.compile(r"\b(CODE_[A-Z_]+|FRAME_[A-Z_]+|dialect_\w+|conn|net)\b")
    for name, text in read_sources().items():
        if layer(name) <= LAYERS.index("core"):
            assert not words.findall(COMMENT.sub(" ", text)), name


def knows_openssl(files: Files) -> list[str]:
    return [name for name, text in files.items() if "#include <openssl/" in text]


def test_only_the_files_of_tls_know_openssl() -> None:
    named = re.compile(r"net/(tls_\w+|stream_tls)\.[ch]")
    assert all(named.fullmatch(name) for name in knows_openssl(read_sources()))
    assert knows_openssl({"net/conn.c": "#include <openssl/ssl.h>\n"})


PLANTED = {
    "core/execute.c": "void execute(void) { reply(1); }\n",
    "net/conn.c": "int reply(int status) {\n    return status;\n}\n",
}


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("core/planted.c", "int planted(void) {\n    return conn_advance(0);\n}\n"),
        ("base/planted.c", "static void (*const kept)(void) = conn_advance;\n"),
    ],
)
def test_a_planted_call_upwards_is_found(file: str, text: str) -> None:
    assert upwards(calls({**read_sources(), file: text})) == [f"{file} -> net/conn/advance.c"]


def test_a_planted_include_upwards_is_found() -> None:
    files = {**read_sources(), "log/planted.h": '#include "peer/peers.h"\n#include "log/partition/inside.h"\n'}
    assert upwards(includes(files)) == ["log/planted.h -> log/partition/inside.h", "log/planted.h -> peer/peers.h"]


def test_a_planted_cycle_is_found() -> None:
    files = {
        **read_sources(),
        "net/one.c": "int one(void) { return two(); }\n",
        "net/two.c": "int two(void) {\n    return one();\n}\n",
    }
    assert frozenset({"net/one.c", "net/two.c"}) in cycles(calls(files))


@pytest.mark.parametrize("body", ["{ return one(); }", "{\n    if (true) {\n    }\n    return one();\n}"])
def test_a_planted_cycle_through_an_inline_function_is_found(body: str) -> None:
    files = {
        "net/one.c": "int one(void) {\n    return two();\n}\n",
        "net/two.c": "int two(void) {\n    return three();\n}\n",
        "net/two.h": f"static inline __attribute__((always_inline)) int three(void) {body}\n",
    }
    assert cycles(calls(files)) == {frozenset({"net/one.c", "net/two.c"})}


def test_a_call_in_a_comment_or_a_text_is_none() -> None:
    assert upwards(calls(PLANTED)) == ["core/execute.c -> net/conn.c"]
    quiet = {**PLANTED, "core/execute.c": 'void execute(void) { /* reply(1) */ log("reply(1)"); }\n'}
    assert not upwards(calls(quiet))
