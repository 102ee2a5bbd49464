"""`make wheel`, and its wheel in an environment that has nothing else: no checkout, no compiler on PATH."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import wire
from tests.support.built import make
from tests.support.packages import PROJECT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
READY_WAIT_S = 60.0
READ_A_TOPIC = """
import sys
from shardd.spark import session
who = {"username": "iggy", "password": "iggy", "servers": sys.argv[1], "isolation": "visible"}
rows = session.read(session.session("local[1]"), "s/t", columns="value", **who).collect()
print([bytes(row.value) for row in rows])
"""


@pytest.fixture(scope="module")
def wheel() -> Path:
    done = make(PROJECT, "wheel")
    assert done.returncode == 0, done.stderr
    (made,) = (PROJECT / "dist").glob("*.whl")
    return made


def environment_with(wheel: Path, directory: Path, extra: str = "") -> Path:
    """The `bin` of a new environment with the wheel alone. No program is on PATH: nothing can be compiled."""
    venv.create(directory)
    pip = [sys.executable, "-m", "pip", "--python", str(directory / "bin/python"), "install", "--quiet"]
    subprocess.run([*pip, f"{wheel}{extra}"], check=True, timeout=1800, env=os.environ | {"PATH": ""})
    return directory / "bin"


@contextmanager
def development_server(programs: Path, log: Path) -> Iterator[str]:
    """The address of `shardd serve --dev`; nothing but the environment's own programs is on PATH."""
    variables = {"PATH": str(programs), "HOME": str(log.parent), "SHARDD_TCP_ADDRESS": "127.0.0.1:0"}
    with log.open("wb") as output:
        process = subprocess.Popen([programs / "shardd", "serve", "--dev"], env=variables, cwd="/", stderr=output)
        try:
            deadline = time.monotonic() + READY_WAIT_S
            while not (found := re.search(r"tcp (\S+), ready", log.read_text())):
                assert process.poll() is None and time.monotonic() < deadline, log.read_text()
                time.sleep(0.05)
            yield found[1]
        finally:
            process.terminate()
            assert process.wait(READY_WAIT_S) == 0


def send(address: str) -> None:
    with wire.Wire(address) as client:
        client.login()
        client.create_stream("s")
        client.create_topic("s", "t", 1)
        client.send("s", "t", wire.to_partition(0), [wire.message(b"hello")])
        assert [message.payload for message in client.read_all("s", "t", 0)] == [b"hello"]


def test_the_wheel_is_for_old_glibc_and_every_python(wheel: Path) -> None:
    assert wheel.name.endswith("-cp311-abi3-manylinux_2_28_x86_64.whl")


def test_the_wheel_serves_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    with development_server(environment_with(wheel, tmp_path / "venv"), tmp_path / "log") as address:
        send(address)


def test_the_wheel_with_its_extra_lets_spark_read(wheel: Path, tmp_path: Path) -> None:
    programs = environment_with(wheel, tmp_path / "venv", "[spark]")
    with development_server(programs, tmp_path / "log") as address:
        send(address)
        variables = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
        done = subprocess.run(
            [programs / "python", "-c", READ_A_TOPIC, address],
            env=variables,
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
    assert done.stdout.strip() == "[b'hello']", done.stderr
