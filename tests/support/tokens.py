"""`python -m tests.support.tokens [COMMIT]` (`make tokens BEFORE=COMMIT`): how large the product is, in tokens by
package, without comments, docstrings and assertions; with a commit also what the product had there.

Lines can be made fewer without making a program smaller; tokens cannot. Both sides are counted by one interpreter: an
f-string is one token in Python 3.11 and many in 3.12."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tarfile
import tempfile
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
PRODUCT: Final = (
    *(("shardd", "*.py"), ("bench/native", "load*.[ch]")),
    *(("native/" + each, "*.[ch]") for each in ("src", "binding", "load")),
)
DEEP: Final = {("shardd", "doors"), ("shardd", "transport"), ("shardd", "dispatch"), ("native", "src")}
"""Directories whose packages have rows of their own."""
STRUCTURE: Final = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}
C_TOKEN: Final = re.compile(
    r"""(?P<comment>/\*.*?\*/|//[^\n]*)|(?P<string>(?:u8|[uUL])?"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')"""
    r"""|(?P<number>\.?\d(?:[eEpP][+-]|[\w.])*)|(?P<name>[A-Za-z_]\w*)"""
    r"""|(?P<sign><<=|>>=|\.\.\.|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|\#\#|[^\s\w])""",
    re.DOTALL | re.VERBOSE,
)
C_ASSERTIONS: Final = {"ASSERT", "assert", "_Static_assert", "static_assert"}

Position = tuple[int, int]


class Sizes(NamedTuple):
    files: Counter[str]
    tokens: Counter[str]


def _is_left_out(node: ast.AST) -> bool:
    if isinstance(node, ast.Assert):
        return True
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _left_out(text: str) -> Iterator[tuple[Position, Position]]:
    """Where docstrings and assertions are, in lines and characters: ast counts bytes."""
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if not _is_left_out(node):
            continue
        assert isinstance(node, ast.stmt)
        end_line, end_byte = node.end_lineno or node.lineno, node.end_col_offset or 0
        begin = len(lines[node.lineno - 1].encode()[: node.col_offset].decode())
        yield (node.lineno, begin), (end_line, len(lines[end_line - 1].encode()[:end_byte].decode()))


def python_tokens(text: str) -> int:
    left_out = sorted(_left_out(text))
    count = at = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in STRUCTURE:
            continue
        while at < len(left_out) and left_out[at][1] <= token.start:
            at += 1
        count += not (at < len(left_out) and left_out[at][0] <= token.start)
    return count


def c_tokens(text: str) -> int:
    count, depth, in_assertion = 0, 0, False
    for found in C_TOKEN.finditer(text):
        word = found.group()
        if found.lastgroup == "comment":
            continue
        if in_assertion:
            depth += (word == "(") - (word == ")")
            in_assertion = depth > 0 or word != ";"
        elif word in C_ASSERTIONS:
            in_assertion, depth = True, 0
        else:
            count += 1
    return count


def package_of(path: Path, root: Path) -> str:
    parts = path.relative_to(root).parts
    return "/".join(parts[: min(3 if parts[:2] in DEEP else 2, len(parts) - 1)])


def sizes_of(root: Path) -> Sizes:
    sizes = Sizes(Counter(), Counter())
    for place, pattern in PRODUCT:
        for path in sorted((root / place).rglob(pattern)):
            text = path.read_text()
            if text.startswith("/* Generated"):
                continue
            package = package_of(path, root)
            sizes.files[package] += 1
            sizes.tokens[package] += python_tokens(text) if path.suffix == ".py" else c_tokens(text)
    return sizes


def sizes_at(commit: str) -> Sizes:
    with tempfile.TemporaryDirectory(prefix="shardd-tokens-") as directory:
        packed = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(directory, filter="data")
        return sizes_of(Path(directory))


def rows(now: Sizes, before: Sizes | None) -> Iterator[str]:
    def row(name: str, files: str, tokens: int, earlier: int) -> str:
        text = f"{name:26} {files:>6} {tokens:8}"
        return text if before is None else f"{text} {earlier:8} {tokens - earlier:+8}"

    yield f"{'package':26} {'files':>6} {'tokens':>8}" + (f" {'before':>8} {'change':>8}" if before else "")
    earlier = Counter[str]() if before is None else before.tokens
    names = sorted({*now.tokens, *earlier})
    for name in names:
        yield row(name, str(now.files[name]), now.tokens[name], earlier[name])
    for title, starts in (("Python", ("shardd",)), ("C", ("native", "bench")), ("all", ("",))):
        own = [name for name in names if name.startswith(starts)]
        yield row(title, "", sum(now.tokens[name] for name in own), sum(earlier[name] for name in own))


def main() -> None:
    commit = sys.argv[1] if len(sys.argv) > 1 else ""
    print(*rows(sizes_of(ROOT), sizes_at(commit) if commit else None), sep="\n")


if __name__ == "__main__":
    main()
