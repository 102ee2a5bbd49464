"""A Debian package of the wheel in dist/, as `make deb` makes it: dist/shardd_VERSION_amd64.deb and its bill of
materials.

Server and Python packages stand in an environment in /usr/lib/shardd on the distribution's Python: the release of this
machine, or DEB_PYTHON=3.13. Packages are the wheels of PyPI for that Python, nothing is compiled here.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from email.utils import formatdate
from pathlib import Path
from typing import Final

import sbom

PROJECT: Final = Path(__file__).resolve().parents[1]
DEBIAN: Final = PROJECT / "distribution/debian"
HOME: Final = "usr/lib/shardd"
GLIBC_MINORS: Final = (28, 27, 26, 24, 17, 12, 5)  # platforms of wheels that run with glibc 2.28
CONFIG: Final = "etc/shardd/server.toml"
PROGRAM: Final = """#!/usr/lib/shardd/bin/python3 -P
import sys
from shardd.cli.start import main
sys.exit(main())
"""


def asked(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def python_of_the_distribution() -> str:
    named = os.environ.get("DEB_PYTHON")
    return named or asked("/usr/bin/python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])")


def maintainer() -> str:
    """As Debian's own tools know who makes a package."""
    name, address = os.environ.get("DEBFULLNAME", "shardd contributors"), os.environ.get("DEBEMAIL")
    return f"{name} <{address or 'shardd@example.org'}>"


def write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def make_environment(root: Path, wheel: Path, python: str) -> Path:
    """A virtual environment by hand: the interpreter is that of the machine that installs the package."""
    home = root / HOME
    site = home / "lib" / f"python{python}" / "site-packages"
    platforms = [word for minor in GLIBC_MINORS for word in ("--platform", f"manylinux_2_{minor}_x86_64")]
    of_2014 = ["--platform", "manylinux2014_x86_64"]
    options = ["--quiet", "--disable-pip-version-check", "--no-compile", "--only-binary=:all:"]
    target = ["--python-version", python, "--implementation", "cp", "--target", str(site)]
    pip = [sys.executable, "-m", "pip", "install", *options, *platforms, *of_2014, *target, str(wheel)]
    subprocess.run(pip, check=True)
    shutil.rmtree(site / "bin", ignore_errors=True)  # programs of packages, with this machine's Python in them
    for module in site.rglob("*.so"):
        if not module.parent.name.endswith(".libs"):  # those are stripped, and too much patched for another time
            subprocess.run(["strip", "--strip-unneeded", str(module)], check=True)
    write(home / "pyvenv.cfg", f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {python}\n")
    write(home / "bin/shardd", PROGRAM, 0o755)
    (home / "bin/python3").symlink_to("/usr/bin/python3")
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/bin/shardd").symlink_to("../lib/shardd/bin/shardd")
    return site


def add_files(root: Path, version: str, date: str) -> None:
    """What is no Python: settings, unit, documents."""
    write(root / CONFIG, (PROJECT / "config/server.toml").read_text(), 0o640)
    unit = (PROJECT / "distribution/systemd/shardd.service").read_text()
    packaged = unit.replace("ExecStart=/opt/shardd/bin/shardd ", "ExecStart=/usr/bin/shardd ")
    assert packaged != unit, "the unit names another program"
    write(root / "lib/systemd/system/shardd.service", packaged)
    documents = root / "usr/share/doc/shardd"
    write(documents / "copyright", (DEBIAN / "copyright").read_text())
    change = f"shardd ({version}) unstable; urgency=medium\n\n  * See CHANGELOG.md.\n\n"
    change += f" -- {maintainer()}  {date}\n"
    for name, text in (("changelog.gz", change), ("CHANGELOG.md.gz", (PROJECT / "CHANGELOG.md").read_text())):
        (documents / name).write_bytes(gzip.compress(text.encode(), mtime=0))
    write(root / "usr/share/lintian/overrides/shardd", (DEBIAN / "lintian-overrides").read_text())
    for script in ("postinst", "prerm", "postrm"):
        write(root / "DEBIAN" / script, (DEBIAN / script).read_text(), 0o755)


def next_python(python: str) -> str:
    major, minor = python.split(".")
    return f"{major}.{int(minor) + 1}"


def add_control(root: Path, version: str, python: str) -> None:
    files = sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    payload = [path for path in files if "DEBIAN" not in path.relative_to(root).parts]
    sums = [f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(root)}\n" for path in payload]
    write(root / "DEBIAN/md5sums", "".join(sums))
    write(root / "DEBIAN/conffiles", f"/{CONFIG}\n")
    size_kib = sum(path.stat().st_size for path in payload) // 1024
    text = (DEBIAN / "control").read_text()
    values = {"VERSION": version, "SIZE": size_kib, "PYTHON": python, "NEXT": next_python(python)}
    write(root / "DEBIAN/control", text.format(**values, MAINTAINER=maintainer()))


def make_plain(root: Path) -> None:
    """Modes as Debian wants them, under any umask."""
    for path in root.rglob("*"):
        if path.is_symlink():
            continue
        executable = path.is_dir() or (path.parent.name in ("bin", "DEBIAN") and path.stat().st_mode & 0o100)
        if path != root / CONFIG:
            path.chmod(0o755 if executable else 0o644)
    root.chmod(0o755)


def main() -> None:
    dist = PROJECT / "dist"
    (wheel,) = dist.glob("shardd-*.whl")
    version = wheel.name.split("-")[1]
    (bill,) = dist.glob("shardd-*.whl.cdx.json")
    python = python_of_the_distribution()
    made = dist / f"shardd_{version}_amd64.deb"
    stamp = int(os.environ.get("SOURCE_DATE_EPOCH") or asked("git", "-C", str(PROJECT), "log", "-1", "--format=%ct"))
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary) / "root"
        root.mkdir()
        site = make_environment(root, wheel, python)
        add_files(root, version, formatdate(stamp))
        components = [*sbom.linked(bill), *sbom.installed(site, without="shardd")]
        sbom.write(root / "usr/share/doc/shardd/sbom.cdx.json", wheel, version, components)
        make_plain(root)
        add_control(root, version, python)
        environment = os.environ | {"SOURCE_DATE_EPOCH": str(stamp)}
        build = ["dpkg-deb", "--root-owner-group", "-Zxz", "--build", str(root), str(made)]
        subprocess.run(build, check=True, env=environment, stdout=subprocess.DEVNULL)
        sbom.write(dist / f"{made.name}.cdx.json", made, version, components)
    subprocess.run(["lintian", "--fail-on", "error", str(made)], check=True)
    print(f"dist/{made.name}")


if __name__ == "__main__":
    main()
