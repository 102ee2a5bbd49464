"""Where the modules of a server come from: not from the directory in which somebody starts it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import wire
from tests.support.server import ONE_SHARD, Server

ROOT = Path(__file__).parents[2]
# what workers, supervisor, pyspark and the standard library import early and late
PLANTED = ("msgspec", "zmq", "xxhash", "argon2", "typer", "tomllib", "socket", "py4j", "pickle")
SCRIPT = Path(sys.executable).with_name("shardd")


def plant(directory: Path) -> Path:
    """Modules that say so when they run; the file in which they do."""
    directory.mkdir()
    marker = directory / "marker"
    says = f"import sys\nwith open({str(marker)!r}, 'a') as file: file.write(f'{{__name__}} {{sys.orig_argv}}\\n')\n"
    for name in PLANTED:
        (directory / f"{name}.py").write_text(says + "raise SystemExit(9)\n")
    return marker


def from_directory(directory: Path, *command: str) -> tuple[str, ...]:
    """A launcher that starts the server there; `command` instead of `python -m shardd`."""
    return ("sh", "-c", 'cd "$0" && shift 3 && exec ' + " ".join(command) + ' "$@"', str(directory))


@pytest.mark.parametrize(
    "command", [(str(SCRIPT),), (sys.executable, "-m", "shardd")], ids=["shardd", "python -m shardd"]
)
def test_a_server_imports_nothing_from_the_current_directory(tmp_path: Path, command: tuple[str, ...]) -> None:
    marker = plant(tmp_path / "planted")
    with Server(tmp_path / "data", ONE_SHARD, launcher=from_directory(marker.parent, *command)) as server:
        with wire.connect(server.address) as connection:
            connection.create_stream("s")
        assert server.stop() == 0
    assert not marker.exists(), marker.read_text()


def test_a_server_starts_beside_its_checkout(tmp_path: Path) -> None:
    (tmp_path / "shardd").symlink_to(ROOT)
    with Server(tmp_path / "data", ONE_SHARD, launcher=from_directory(tmp_path, str(SCRIPT))) as server:
        assert server.stop() == 0, server.log()


def test_workers_of_spark_import_nothing_from_the_current_directory(tmp_path: Path) -> None:
    """The process from which Spark forks them, started as Spark does it with the environment of a session."""
    pytest.importorskip("pyspark")
    from shardd.spark.java import NoJavaError

    marker = plant(tmp_path / "planted")
    program = (
        "import os, sys; from shardd.spark.session import prepare_environment; prepare_environment();"
        "os.chdir(sys.argv[1]); os.execv(sys.executable, [sys.executable, '-m', 'pyspark.daemon', 'pyspark.worker'])"
    )
    command = [sys.executable, "-P", "-c", program, str(marker.parent)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
    if NoJavaError.__name__.encode() in done.stderr:
        pytest.skip("no Java")
    assert not marker.exists(), marker.read_text()
    assert len(done.stdout) == 4, "the number of its port, then it ends with its standard input"
