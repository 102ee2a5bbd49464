"""Imports point downwards only: the table of docs/ARCHITECTURE.md."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "shardd"
OVERVIEW = PACKAGE.parent / "docs" / "ARCHITECTURE.md"
# lowest first; packages of one row may know each other in one direction
ROWS = [
    {"config", "engine"},
    {"protocol", "runtime"},
    {"log"},
    {"metadata", "security", "groups"},
    {"migration", "backup"},
    {"service"},
    {"worker", "maintenance"},
    {"server", "client"},
    {"dispatch"},
    {"observability", "spark", "benchmark"},
    {"doors"},
    {"cli"},
]
LEVEL = {name: level for level, row in enumerate(ROWS) for name in row}
ENTRY = {"__init__", "__main__"}  # in no package: the version, and `python -m shardd`


def imported_packages(source: str) -> set[str]:
    """Packages of shardd that a module imports, also inside functions and for type checking."""
    packages: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [node.module] if node.module != "shardd" else [f"shardd.{alias.name}" for alias in node.names]
        packages |= {name.split(".")[1] for name in names if name.startswith("shardd.")}
    return packages - {"__version__"}


def edges() -> dict[tuple[str, str], list[str]]:
    """(importing package, imported package) -> files."""
    found: dict[tuple[str, str], list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        relative = path.relative_to(PACKAGE)
        package = relative.parts[0].removesuffix(".py")
        if package in ENTRY:
            continue
        for other in imported_packages(path.read_text()) - {package}:
            found.setdefault((package, other), []).append(str(relative))
    return found


def test_every_package_has_its_row() -> None:
    packages = {path.name for path in PACKAGE.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert packages <= LEVEL.keys(), f"without a row: {sorted(packages - LEVEL.keys())}"


def test_the_overview_shows_the_same_rows() -> None:
    _, _, below = OVERVIEW.read_text().partition("## Layers\n")
    block = [line for line in below.partition("\n## ")[0].splitlines() if line.startswith("    ")]
    shown = [name for line in reversed(block) for name in line[4:].partition("  ")[0].split()]
    assert shown[0] == "native/" and sorted(shown[1:]) == sorted(LEVEL)
    levels = [LEVEL[name] for name in shown[1:]]
    assert levels == sorted(levels), "docs/ARCHITECTURE.md shows them in another order"


def test_imports_point_downwards() -> None:
    wrong = [
        f"{file}: {importing} imports {imported}"
        for (importing, imported), files in edges().items()
        if LEVEL[importing] < LEVEL[imported]
        for file in files
    ]
    assert not wrong, "\n".join(wrong)


def test_packages_of_one_row_form_no_cycle() -> None:
    found = edges()
    cycles = [pair for pair in found if pair[0] < pair[1] and pair[::-1] in found]
    assert not cycles, f"these import each other: {cycles}"


def test_imports_are_found_wherever_they_stand() -> None:
    source = "from shardd import engine\nimport shardd.log.trash\ndef f():\n    from shardd.worker import partitions\n"
    assert imported_packages(source) == {"engine", "log", "worker"}


def service_commands() -> dict[str, str | None]:
    """Every command of a service (it is asked by an identity) with what it says that it returns."""
    service = PACKAGE / "service"
    return {
        ".".join((*path.relative_to(service).with_suffix("").parts, node.name)): (
            None if node.returns is None else ast.unparse(node.returns)
        )
        for path in sorted(service.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.AsyncFunctionDef)
        and not node.name.startswith("_")
        and [argument.arg for argument in node.args.args[:3]] == ["self", "identity", "request"]
    }


def test_services_return_values_and_know_no_command_code() -> None:
    commands = service_commands()
    assert len(commands) >= 45
    archive = {"snapshot.get_snapshot"}  # a ZIP archive is a value of bytes
    assert {name for name, returns in commands.items() if returns is None or "bytes" in returns} == archive
    for path in (PACKAGE / "service").rglob("*.py"):
        assert not codes_known(path.read_text(), path.stem), path


def codes_known(source: str, module: str) -> bool:
    """Whether a service knows codes. LIST_EXTENSIONS tells them, and takes the list from the catalogue."""
    told = source.replace("protocol.catalogue import EXTENSIONS\n", "") if module == "extensions" else source
    return any(each in told for each in ("protocol.codes", "protocol.catalogue", "ExtensionCode"))


def test_a_service_that_knows_codes_is_found() -> None:
    assert codes_known("from shardd.protocol.catalogue import EXTENSIONS\n", "topics")
    assert codes_known("from shardd.protocol.catalogue import COMMANDS, EXTENSIONS\n", "extensions")


def test_the_dispatch_package_is_imported_by_process_entry_points_only() -> None:
    importing = {package for package, imported in edges() if imported == "dispatch"}
    assert importing == {"cli"}
