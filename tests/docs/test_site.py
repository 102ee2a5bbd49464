"""What the site is made of: every page has its place, every command and every setting is in the reference."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shardd import client
from shardd.cli.families import ALONE, FAMILIES
from shardd.client import errors
from shardd.client.errors import ClientError
from shardd.config.keys import KEYS

PROJECT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("site") / "sources"
    command = [sys.executable, str(PROJECT / "distribution/site/stage.py"), str(into)]
    # A Spark session of this process has set it: the program imports what lies beside it.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    subprocess.run(command, check=True, timeout=120, cwd=PROJECT, env=environment)
    return into


def pages(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    else:
        for each in entry.values() if isinstance(entry, dict) else entry:
            yield from pages(each)


def test_every_page_has_one_place_in_the_navigation(staged: Path) -> None:
    listed = list(pages(json.loads((staged / "mkdocs.yml").read_text())["nav"]))
    assert sorted(listed) == sorted(str(path.relative_to(staged / "docs")) for path in (staged / "docs").rglob("*.md"))


def test_links_stay_inside_the_site(staged: Path) -> None:
    docs = (staged / "docs").resolve()
    for page in docs.rglob("*.md"):
        prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\(([^()\s#]+)[^()\s]*\)", prose):
            path = (page.parent / target).resolve()
            assert "://" in target or (path.is_file() and path.is_relative_to(docs)), (page, target)


def test_the_reference_has_every_command_and_every_setting(staged: Path) -> None:
    commands = (staged / "docs" / "reference/commands.md").read_text()
    titles = {line.removeprefix("## shardd ") for line in commands.splitlines() if line.startswith("## ")}
    assert {title.split()[0] for title in titles} >= FAMILIES.keys() | ALONE.keys() | {"serve", "ping", "login", "top"}
    assert {"topic settings set", "topic get", "group seek", "message tail"} <= titles
    assert "`--partitions <int range>`" in commands and "[default: 1; 0<=x<=1000]" in commands.replace("\\", "")
    settings = (staged / "docs" / "reference/settings.md").read_text()
    assert all(f"`{key.path}`" in settings for key in KEYS)
    assert "`SHARDD_TCP_TLS_MODE`" in settings


def test_the_reference_has_all_of_the_client_and_the_metrics(staged: Path) -> None:
    text = (staged / "docs" / "reference/client.md").read_text()
    shapes = [getattr(client, name) for name in ("Producer", "Consumer", "Client")]
    methods = {name for each in shapes for name, _ in inspect.getmembers(each, callable) if not name.startswith("_")}
    assert [name for name in methods if f"| `{name}(" not in text] == []
    kinds = [name for name, each in vars(errors).items() if inspect.isclass(each) and issubclass(each, ClientError)]
    assert [name for name in kinds if f"| `{name}(" not in text] == []
    metrics = (staged / "docs" / "reference/metrics.md").read_text()
    assert "| `shardd_request_duration_seconds` | histogram |" in metrics
    assert "| `shardd_group_lag_seconds` | gauge |" in metrics
    assert metrics.count("\n| `shardd_") > 50
