"""The last program that knows format version 1 alone, taken from the history: it refuses a directory of version 2 with
one sentence and changes nothing in it (docs/adr/0028-format-version-2.md). Skipped without the history."""

from __future__ import annotations

import hashlib
import io
import itertools
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.support import golden_directory as golden

ROOT = Path(__file__).parents[2]
EARLIER = "f867890a4ffb1efd5ad7d2e92d6048ca099cc3ef"
VERSION_2 = ("v3", "v4")  # v4: log starts and compressed segments
SENTENCE = "{}/info.json: format version 2 is unknown; this is version 1"
BUILD_TIMEOUT_S = 500
# What its start does first with a directory. The rest of a start needs its native module.
CHECK = """
import sys
from pathlib import Path
from shardd.shard.supervisor_directory import prepare_directory
prepare_directory(Path(sys.argv[1]), sys.argv[2] == "fresh")
"""


def unpacked(directory: Path, *paths: str) -> Path:
    """So much of the earlier program."""
    made = subprocess.run(["git", "-C", str(ROOT), "archive", EARLIER, *paths], capture_output=True, check=False)
    if made.returncode != 0:
        pytest.skip(f"no history here: {made.stderr.decode(errors='replace').strip()}")
    directory.mkdir()
    with tarfile.open(fileobj=io.BytesIO(made.stdout)) as archive:
        archive.extractall(directory)
    return directory


def digests(data: Path) -> dict[str, str]:
    """The lock file gets the process id of whoever tries."""
    return {
        str(path.relative_to(data)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in data.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def run(program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SHARDD_", "PYTHON"))}
    environment["SHARDD_TCP_ADDRESS"] = "127.0.0.1:0"
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=program, env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("version", VERSION_2)
def test_the_check_of_the_earlier_program_refuses_version_2(version: str, tmp_path: Path) -> None:
    program = unpacked(tmp_path / "program", "shardd")
    data = golden.unpack(version, tmp_path)
    before = digests(data)
    for how in ("as it is", "fresh"):
        ended = run(program, "-c", CHECK, str(data), how)
        last = ended.stderr.strip().splitlines()[-1]
        assert ended.returncode != 0 and last.endswith("StartupError: " + SENTENCE.format(data)), ended.stderr
        assert digests(data) == before
    earlier = golden.unpack("v2", tmp_path / "earlier")
    assert run(program, "-c", CHECK, str(earlier), "as it is").returncode == 0


@pytest.mark.slow
def test_the_earlier_program_refuses_version_2_with_one_sentence(tmp_path: Path) -> None:
    program = unpacked(tmp_path / "program", "shardd", "native")
    build = ["make", "-s", "-C", str(program / "native"), f"PYTHON={sys.executable}", "module"]
    subprocess.run(build, check=True, timeout=BUILD_TIMEOUT_S)
    (tmp_path / "backups").mkdir()
    for version, verb in itertools.product(VERSION_2, ("serve", "backup")):
        data = golden.unpack(version, tmp_path / version)
        before = digests(data)
        words = {"serve": ("serve",), "backup": ("backup", "create")}[verb]
        command = (*words, "--data", str(data), *([str(tmp_path / "backups")] if verb == "backup" else []))
        ended = run(program, "-m", "shardd", *command)
        said = (ended.stdout + ended.stderr).strip()
        assert (ended.returncode, said.count("\n")) == (1, 0) and said.endswith(SENTENCE.format(data)), said
        assert digests(data) == before
    assert list((tmp_path / "backups").iterdir()) == []
