"""The C core keeps no state of its own: what changes belongs to an engine, so that two live in one process."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "native"
OBJECTS = NATIVE / "build" / "release"
# (file in src, symbol): a reason stands beside each
ALLOWED = {
    ("base/checksum.o", "with_avx2"),  # what the CPU can do: written once, when the module is loaded
    ("wire/crc32.o", "tables"),  # the same for everybody: made once (pthread_once)
    ("wire/crc32.o", "tables_made"),
}


def writable_symbols(path: Path) -> set[str]:
    """What an object file defines outside of constants; a table of addresses is constant once it is loaded."""
    table = subprocess.run(["objdump", "-t", path], check=True, capture_output=True, text=True).stdout
    found = set()
    for line in table.splitlines():
        head, tab, tail = line.partition("\t")
        words = head.split()
        if not tab or len(words) < 3:
            continue
        section, name = words[-1], tail.split()[-1]
        writable = section == "*COM*" or section.split(".")[1:2] in (["data"], ["bss"], ["tdata"], ["tbss"])
        if writable and not section.startswith(".data.rel.ro") and name != section:
            found.add(name)
    return found


def test_no_file_of_the_core_has_state() -> None:
    sources = sorted((NATIVE / "src").rglob("*.c"))
    objects = [OBJECTS / source.relative_to(NATIVE / "src").with_suffix(".o") for source in sources]
    assert len(objects) > 40
    found = {(str(path.relative_to(OBJECTS)), name) for path in objects for name in writable_symbols(path)}
    assert found == ALLOWED


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("static int calls; int f(void) { return ++calls; }", {"calls"}),
        ("int limit = 5; int f(void) { return limit; }", {"limit"}),
        ("int f(void) { static int calls = 1; return ++calls; }", {"calls.0"}),
        ("_Thread_local int last; int f(void) { return last; }", {"last"}),
        ('static const char *const t[] = {"a", "b"}; const char *f(int i) { return t[i]; }', set()),
    ],
)
def test_state_is_found(tmp_path: Path, source: str, names: set[str]) -> None:
    (tmp_path / "a.c").write_text(source)
    command = ["cc", "-O3", "-fPIC", "-c", "-o", str(tmp_path / "a.o"), str(tmp_path / "a.c")]
    subprocess.run(command, check=True, capture_output=True)
    assert writable_symbols(tmp_path / "a.o") == names
