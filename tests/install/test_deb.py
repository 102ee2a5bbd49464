"""`make deb`: a machine that has nothing but Debian and the package (debootstrap, a chroot)."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.built import make
from tests.support.packages import PROJECT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("debootstrap"), reason="needs root and debootstrap"),
]
SERVE = """
set -e
setpriv --reuid shardd --regid shardd --init-groups env SHARDD_ROOT_USERNAME=iggy SHARDD_ROOT_PASSWORD=password \\
    SHARDD_TCP_ADDRESS=127.0.0.1:0 shardd serve --config /etc/shardd/server.toml --data /var/lib/shardd 2>/tmp/log &
for turn in $(seq 300); do
    grep -q ready /tmp/log && break
    sleep 0.2
done
address=$(sed -n 's/.*tcp \\([^,]*\\), ready/\\1/p' /tmp/log)
shardd top --once --json --address "$address" --username iggy --password password >/tmp/top
kill $!
wait $!
"""


@pytest.fixture(scope="module")
def package() -> Path:
    done = make(PROJECT, "deb")
    assert done.returncode == 0, done.stdout + done.stderr  # lintian has no error, too
    (made,) = (PROJECT / "dist").glob("*.deb")
    return made


@pytest.fixture(scope="module")
def machine(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("machine") / "root"
    release = platform.freedesktop_os_release()["VERSION_CODENAME"]
    debootstrap = ["debootstrap", "--variant=minbase", "--include=python3,adduser", release, str(root)]
    subprocess.run(debootstrap, check=True, capture_output=True, timeout=1200)
    shutil.copy(package, root / "package.deb")
    subprocess.run(["mount", "-t", "proc", "proc", root / "proc"], check=True)
    try:
        yield root
    finally:
        subprocess.run(["umount", root / "proc"], check=True)


def inside(machine: Path, *command: str) -> str:
    path = "/usr/sbin:/usr/bin:/sbin:/bin"
    done = subprocess.run(["chroot", machine, *command], env={"PATH": path}, capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_package_serves_and_leaves_data_and_settings(machine: Path) -> None:
    inside(machine, "dpkg", "--install", "/package.deb")
    data, settings = machine / "var/lib/shardd", machine / "etc/shardd/server.toml"
    assert (data.stat().st_mode & 0o7777, settings.stat().st_mode & 0o7777) == (0o700, 0o640)
    inside(machine, "sh", "-c", SERVE)
    assert '"shards"' in (machine / "tmp/top").read_text()
    assert (data / "info.json").stat().st_uid == data.stat().st_uid != 0
    settings.write_text(settings.read_text() + "# changed here\n")
    inside(machine, "dpkg", "--install", "/package.deb")
    assert settings.read_text().endswith("# changed here\n")
    inside(machine, "dpkg", "--remove", "shardd")
    assert settings.exists()
    assert not (machine / "usr/lib/shardd").exists()  # byte code, too
    inside(machine, "dpkg", "--purge", "shardd")
    assert not settings.exists()
    assert (data / "info.json").exists()


def test_the_package_names_what_it_is_made_of(package: Path) -> None:
    text = package.with_name(f"{package.name}.cdx.json").read_text()
    assert all(f'"name": "{name}"' in text for name in ("liburing", "libzstd", "pyzmq", "cffi", "typer"))
