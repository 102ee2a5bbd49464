"""Binary wheels for any Linux on x86-64 with glibc 2.28 or newer, as `make wheel` makes them.

The sdist is built first, and the wheel from it. Compiler: zig (ziglang of PyPI), which brings the symbols of every
glibc. What the engine links is built in, from the static libraries of the distribution. auditwheel has the last word.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import PathDistribution
from pathlib import Path
from typing import Final, NamedTuple

import sbom

PROJECT: Final = Path(__file__).resolve().parents[1]
GLIBC: Final = "2.28"
PLATFORM: Final = "manylinux_2_28_x86_64"
INCLUDE: Final = Path("/usr/include")
MODULES: Final = {"_native", "_decode", "_codec", "_load"}


class Library(NamedTuple):
    """A library that is built in, from a Debian package, `package` or NAME-dev."""

    name: str  # as pkg-config knows it
    headers: tuple[str, ...]  # below /usr/include
    archive: str = ""  # the static library; "": headers alone
    package: str = ""

    @property
    def debian_package(self) -> str:
        return self.package or f"{self.name}-dev"


# A library that native/Makefile takes from pkg-config has its row here.
LIBRARIES: Final = (
    Library("liburing", ("liburing.h", "liburing"), "liburing.a"),
    Library("libxxhash", ("xxhash.h",)),
    Library("liblz4", ("lz4.h", "lz4hc.h"), "liblz4.a"),
    Library("libzstd", ("zstd.h", "zstd_errors.h"), "libzstd.a"),
    Library("zlib", ("zlib.h", "zconf.h"), "libz.a", "zlib1g-dev"),
    Library("libssl", ("openssl",), "libssl.a"),
    Library("libcrypto", (), "libcrypto.a", "libssl-dev"),
)


def asked(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def link_header(name: str, include: Path) -> None:
    """Debian keeps those files of a directory elsewhere that differ between architectures (openssl)."""
    of_the_architecture = INCLUDE / "x86_64-linux-gnu" / name
    if not of_the_architecture.is_dir():
        (include / name).symlink_to(INCLUDE / name)
        return
    (include / name).mkdir()
    for each in (*(INCLUDE / name).iterdir(), *of_the_architecture.iterdir()):
        (include / name / each.name).symlink_to(each)


def stage(directory: Path) -> Path:
    """Headers and static libraries apart from those of this machine's libc; the directory of their pkg-config files."""
    include, files = directory / "include", directory / "pkgconfig"
    (include / "x86_64-linux-gnu").mkdir(parents=True)
    files.mkdir()
    for configuration in (INCLUDE / "x86_64-linux-gnu").glob("python3*"):  # what Debian's Python.h includes
        (include / "x86_64-linux-gnu" / configuration.name).symlink_to(configuration)
    for library in LIBRARIES:
        version = asked("pkg-config", "--modversion", library.name)
        for header in library.headers:
            link_header(header, include)
        archive = ""
        if library.archive:
            archive = asked("cc", f"-print-file-name={library.archive}")  # Debian's libzstd.pc names another directory
        if archive:
            archive += " -Wl,-Bsymbolic"  # the archives are made for programs: no name may be replaced
        text = (
            f"Name: {library.name}\nDescription: built in\nVersion: {version}\nCflags: -I{include}\nLibs: {archive}\n"
        )
        (files / f"{library.name}.pc").write_text(text)
    return files


def add_licenses(source: Path) -> None:
    """The licenses of what is built in travel with it."""
    (source / "licenses").mkdir()
    for library in LIBRARIES:
        shutil.copy(f"/usr/share/doc/{library.debian_package}/copyright", source / "licenses" / f"{library.name}.txt")
    settings = source / "pyproject.toml"
    before = settings.read_text()
    after = before.replace('license-files = ["LICENSE"]', 'license-files = ["LICENSE", "licenses/*"]')
    assert after != before, "pyproject.toml has no license-files"
    settings.write_text(after)


def backend(source: Path, what: str, into: Path, environment: dict[str, str]) -> Path:
    code = f"from setuptools import build_meta; build_meta.build_{what}({str(into)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=source, env=environment, check=True, stdout=subprocess.DEVNULL)
    (made,) = into.iterdir()
    return made


def foreign_symbols(module: Path) -> set[str]:
    """What the module takes from nowhere that is known: no version of glibc, not CPython."""
    names = asked("nm", "--dynamic", "--undefined-only", "--format=posix", str(module)).splitlines()
    words = [name.split()[0] for name in names if " w " not in name]
    return {word for word in words if "@" not in word and not word.startswith(("Py", "_Py"))}


def check(wheel: Path) -> None:
    with tempfile.TemporaryDirectory() as directory:
        shutil.unpack_archive(wheel, directory, "zip")
        modules = list(Path(directory).rglob("*.so"))
        missing = {module.name: foreign_symbols(module) for module in modules}
    if {module.name.partition(".")[0] for module in modules} != MODULES or any(missing.values()):
        sys.exit(f"{wheel.name}: symbols that glibc {GLIBC} does not have: {missing}")


def write_bill(wheel: Path) -> Path:
    """What is built in, and what pip fetches for it."""
    bill = wheel.with_name(f"{wheel.name}.cdx.json")
    with tempfile.TemporaryDirectory() as directory:
        shutil.unpack_archive(wheel, directory, "zip")
        (metadata,) = Path(directory).glob("*.dist-info")
        distribution = PathDistribution(metadata)
        parts = sbom.required(distribution)
        for library in LIBRARIES:
            version = asked("pkg-config", "--modversion", library.name)
            source = asked("dpkg-query", "--show", "--showformat=${Package} ${Version}", library.debian_package)
            parts.append(sbom.built_in(library.name, version, source))
        sbom.write(bill, wheel, distribution.version, parts)
    return bill


def main() -> None:
    dist = PROJECT / "dist"
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        for part in ("sdist", "unpacked", "wheel"):
            (work / part).mkdir()
        sdist = backend(PROJECT, "sdist", work / "sdist", dict(os.environ))
        shutil.unpack_archive(sdist, work / "unpacked", "gztar")
        (source,) = (work / "unpacked").iterdir()
        add_licenses(source)
        compiler = f"{sys.executable} -m ziglang cc -target x86_64-linux-gnu.{GLIBC}"
        environment = os.environ | {"CC": compiler, "PKG_CONFIG_LIBDIR": str(stage(work / "stage"))}
        wheel = backend(source, "wheel", work / "wheel", environment)
        dist.mkdir(exist_ok=True)
        for old in dist.glob("shardd-*"):
            old.unlink()
        bin_ = Path(sys.executable).parent
        repair = [
            bin_ / "auditwheel",
            "repair",
            "--strip",
            "--only-plat",
            "--plat",
            PLATFORM,
            "--wheel-dir",
            dist,
            wheel,
        ]
        subprocess.run(repair, check=True, env=os.environ | {"PATH": f"{bin_}:{os.environ['PATH']}"})
        (repaired,) = dist.glob("*.whl")
        check(repaired)
        shutil.copy(sdist, dist)
        bill = write_bill(repaired)
    print(f"dist/{repaired.name}\ndist/{sdist.name}\ndist/{bill.name}")


if __name__ == "__main__":
    main()
