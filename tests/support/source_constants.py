"""Constants of the sources as numbers: those of modules of Python, and macros, enumerators and constants of C. Nothing
is imported or compiled. `Sources` may say other numbers for some of them: so a test finds what depends on one."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
Number = int | float
_COMMENT: Final = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_MACRO: Final = re.compile(r"^#define[ \t]+([A-Z][A-Z0-9_]*)[ \t]+((?:[^\n\\]|\\\n)+)$", re.MULTILINE)
_NAMED: Final = re.compile(r"\b([A-Z][A-Z0-9_]{2,})\s*=\s*([^,;{}=]+?)\s*(?=[,;}])")
_SUFFIX: Final = re.compile(r"\b(0[xX][0-9a-fA-F]+|\d+)[uUlL]+\b")
_CAST: Final = re.compile(r"\((?:u?int\d+_t|size_t|long|unsigned|double|uint64_t)\)|\bUINT(?:32|64)_C\b")
_OPERATIONS: Final[Mapping[type[ast.operator], Callable[[Number, Number], Number]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
    ast.LShift: lambda left, right: int(left) << int(right),
    ast.RShift: lambda left, right: int(left) >> int(right),
}


class UnknownError(Exception):
    """What a constant says is no number that can be told without running the sources."""


@cache
def _python(path: str) -> tuple[dict[str, ast.expr], dict[str, tuple[str, str]]]:
    """Constants of a module, and where names come from that it imports: (file, name), ("", name) for a module."""
    constants: dict[str, ast.expr] = {}
    imported: dict[str, tuple[str, str]] = {}
    module = ast.parse((ROOT / path).read_text())
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("shardd"):
            for alias in node.names:
                of_module = f"{node.module}.{alias.name}".replace(".", "/") + ".py"
                is_module = (ROOT / of_module).is_file()
                imported[alias.asname or alias.name] = (
                    (of_module, "") if is_module else (file_of(node.module), alias.name)
                )
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name) and target.id.upper() == target.id:
                    constants.setdefault(target.id, node.value)
    return constants, imported


def file_of(module: str) -> str:
    path = module.replace(".", "/")
    return f"{path}.py" if (ROOT / f"{path}.py").is_file() else f"{path}/__init__.py"


@cache
def _c(path: str) -> dict[str, str]:
    text = _COMMENT.sub("", (ROOT / path).read_text())
    found = {name: said.strip() for name, said in _NAMED.findall(text)}
    return found | {name: said.replace("\\\n", " ").strip() for name, said in _MACRO.findall(text)}


@cache
def _homes_of_c() -> dict[str, str]:
    """The header, or the only file, that has a constant of the core."""
    paths = sorted((ROOT / "native").rglob("*.[ch]"), key=lambda path: (path.suffix != ".h", path))
    homes: dict[str, str] = {}
    for path in paths:
        if "build" not in path.relative_to(ROOT).parts:
            for name in _c(str(path.relative_to(ROOT))):
                homes.setdefault(name, str(path.relative_to(ROOT)))
    return homes


class Sources:
    """`changed`: (file, name) to another number than the source says."""

    def __init__(self, changed: Mapping[tuple[str, str], Number] | None = None) -> None:
        self._changed = changed or {}

    def number(self, path: str, name: str) -> Number:
        """UnknownError; KeyError: the file has no such constant."""
        if path.endswith(".py"):
            return self._of_python(path, name)
        return self._of_c(path, name)

    def numbers(self, path: str, name: str) -> list[Number]:
        """All that a tuple, a range or the values of a dictionary have."""
        if path.endswith(".py") and (path, name) not in self._changed:
            said = _python(path)[0].get(name)
            if isinstance(said, ast.Tuple):
                return [self.python(each, path) for each in said.elts]
            if isinstance(said, ast.Dict):
                return [self.python(each, path) for each in said.values]
            if isinstance(said, ast.Call) and ast.unparse(said.func) == "range":
                first, behind = (self.python(each, path) for each in said.args)
                return [first, behind - 1]
        return [self.number(path, name)]

    def has(self, path: str, name: str) -> bool:
        return name in (_python(path)[0] if path.endswith(".py") else _c(path))

    def home(self, path: str, name: str) -> tuple[str, str]:
        """Where the number of a name stands that the file says or imports."""
        constants, imported = _python(path)
        if name not in constants and name in imported:
            return self.home(*imported[name])
        return path, name

    def _of_python(self, path: str, name: str) -> Number:
        if (path, name) in self._changed:
            return self._changed[path, name]
        constants, imported = _python(path)
        if name in constants:
            return self.python(constants[name], path)
        if name in imported and imported[name][1]:
            home = imported[name][0]
            return self._of_python(*imported[name]) if (ROOT / home).is_file() else self._of_module(name)
        raise KeyError(name)

    def _of_module(self, name: str) -> Number:
        """A number that the native module has for Python."""
        home = _homes_of_c().get(name)
        if home is None:
            raise UnknownError(f"{name} of a native module")
        return self._of_c(home, name)

    def _of_c(self, path: str, name: str) -> Number:
        if (path, name) in self._changed:
            return self._changed[path, name]
        said = _SUFFIX.sub(r"\1", _CAST.sub("", _c(path)[name]))
        try:
            tree = ast.parse(said, mode="eval").body
        except SyntaxError:
            raise UnknownError(f"{path}: {name} is {said}") from None
        return self._value(tree, path, self._name_of_c, whole=True)

    def _name_of_c(self, node: ast.expr, path: str) -> Number:
        if not isinstance(node, ast.Name):
            raise UnknownError(f"{path}: {ast.dump(node)[:80]}")
        if node.id in _c(path):
            return self._of_c(path, node.id)
        home = _homes_of_c().get(node.id)
        if home is None:
            raise UnknownError(f"{path}: {node.id}")
        return self._of_c(home, node.id)

    def of_expression(self, path: str, expression: str) -> Number:
        """Of constants that the file says or imports."""
        tree = ast.parse(expression, mode="eval").body
        if path.endswith(".py"):
            return self.python(tree, path)
        return self._value(tree, path, self._name_of_c, whole=True)

    def python(self, node: ast.expr, path: str) -> Number:
        """Of an expression that stands in the file."""
        return self._value(node, path, self._name_of_python, whole=False)

    def _name_of_python(self, node: ast.expr, path: str) -> Number:
        if isinstance(node, ast.Name):
            try:
                return self._of_python(path, node.id)
            except KeyError:
                raise UnknownError(f"{path}: {node.id}") from None
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            of_module = _python(path)[1].get(node.value.id)
            if of_module is not None and not of_module[1]:
                return self._of_python(of_module[0], node.attr)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "len" and isinstance(node.args[0], ast.Name):
            return len(self.numbers(path, node.args[0].id))
        raise UnknownError(f"{path}: {ast.unparse(node)[:80]}")

    def _value(self, node: ast.expr, path: str, named: Callable[[ast.expr, str], Number], *, whole: bool) -> Number:
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self._value(node.operand, path, named, whole=whole)
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
            left = self._value(node.left, path, named, whole=whole)
            right = self._value(node.right, path, named, whole=whole)
            divides = whole and isinstance(node.op, ast.Div) and isinstance(left, int) and isinstance(right, int)
            return left // right if divides else _OPERATIONS[type(node.op)](left, right)
        return named(node, path)
