"""What the build backend makes of the sources: a wheel that serves without a compiler, an sdist that can be built."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.support import wire
from tests.support.packages import PROJECT, build
from tests.support.server import ONE_SHARD, Server


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that holds the content of the wheel."""
    directory = tmp_path_factory.mktemp("wheel")
    with zipfile.ZipFile(build("wheel", directory)) as wheel:
        wheel.extractall(directory / "site")
    return directory / "site"


def environment(site: Path) -> dict[str, str]:
    """The wheel instead of the checkout, and no program on PATH."""
    return {"PYTHONPATH": str(site), "PYTHONSAFEPATH": "1", "PATH": ""}


def test_the_wheel_serves(site: Path, tmp_path: Path) -> None:
    with Server(tmp_path / "data", environment(site) | ONE_SHARD) as server:
        with wire.Wire(server.address) as client:
            client.login()
            client.create_stream("s")
            client.create_topic("s", "t", 1)
            client.send("s", "t", wire.to_partition(0), [wire.message(b"hello")])
            assert [message.payload for message in client.read_all("s", "t", 0)] == [b"hello"]
        (worker,) = server.worker_pids()
        loaded = {line.split()[-1] for line in Path(f"/proc/{worker}/maps").read_text().splitlines()}
        assert any(path.startswith(str(site / "shardd/engine/_native.")) for path in loaded)
        assert not any(path.startswith(str(PROJECT / "shardd")) for path in loaded)


@pytest.mark.parametrize("module", ["shardd.spark._decode", "shardd.client._codec", "shardd.benchmark._load"])
def test_the_wheel_has_the_modules_of_spark_clients_and_benchmarks(site: Path, module: str) -> None:
    code = f"import {module} as module; print(module.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(site), capture_output=True, text=True, check=True
    )
    assert Path(done.stdout.strip()).is_relative_to(site)


def test_the_wheel_is_for_this_platform_alone(site: Path) -> None:
    (information,) = site.glob("*.dist-info/WHEEL")
    assert "Root-Is-Purelib: false" in information.read_text()
    assert "-none-any" not in information.read_text()


def test_the_sdist_has_what_the_build_reads(tmp_path: Path) -> None:
    archive = build("sdist", tmp_path / "sdist")
    with tarfile.open(archive) as content:
        names = {name.partition("/")[2] for name in content.getnames()}
    sources = {
        str(path.relative_to(PROJECT))
        for part in ("src", "load", "binding")
        for path in (PROJECT / "native" / part).rglob("*.[ch]")
    }
    assert len(sources) > 100
    wanted = {"setup.py", "pyproject.toml", "native/Makefile", "LICENSE", "shardd/engine/_native.pyi"}
    assert wanted | sources <= names
    assert not [name for name in names if name.endswith((".so", ".o", ".pyc"))]


def test_a_build_that_fails_names_its_needs(tmp_path: Path) -> None:
    command = [sys.executable, str(PROJECT / "setup.py"), "-q", "build_ext", "--build-lib", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, env={"PATH": ""}, capture_output=True, text=True)
    assert done.returncode != 0
    assert "apt-get install gcc make pkg-config python3-dev liburing-dev libxxhash-dev liblz4-dev" in done.stderr
