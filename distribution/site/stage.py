"""What `make docs` builds the site of: docs/ with links that stay inside it, and pages that are generated.

    python distribution/site/stage.py build/site-sources     # then mkdocs builds it

Generated: the commands of the command line, the settings with their variables, what the client offers, the metrics of
a server, and the list of decisions.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import typer
from reference import cell, client_reference, metric_reference

from shardd.cli.main import app
from shardd.config.keys import KEYS, environment_suffix

PROJECT: Final = Path(__file__).resolve().parents[2]
LINK: Final = re.compile(r"\[([^\]\n]*)\]\(([^()\s]+)\)")
CODE_BLOCK: Final = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
NAVIGATION: Final[list[Any]] = [
    {"Start": "index.md"},
    {
        "Tutorial": [
            *(f"tutorial/{name}.md" for name in ("produce", "consume", "groups", "retention", "tls", "spark")),
        ]
    },
    {"Coming from": ["coming-from/iggy.md", "coming-from/kafka.md", "coming-from/liftbridge.md"]},
    {"How to": ["operating.md", "cli.md", "bench.md", "spark.md", "liftbridge.md", "security.md"]},
    {
        "Reference": [
            *(f"reference/{name}.md" for name in ("client", "commands", "settings", "metrics")),
            *("configuration.md", "limits.md", "extensions.md"),
            *("compatibility.md", "benchmarks.md", "performance.md", "formats.md", "files.md", "glossary.md"),
        ]
    },
    {"Guarantees": ["guarantees.md", "guarantees-in-detail.md"]},
]


def inside(text: str, page: Path, docs: Path) -> str:
    """Links that leave docs/ become their words: the site has no such page."""

    def kept(match: re.Match[str]) -> str:
        target = match[2].partition("#")[0]
        if "://" in match[2] or not target:
            return match[0]
        path = (page.parent / target).resolve()
        if path == docs / "adr":
            return f"[{match[1]}]({match[2].rstrip('/')}/README.md)"
        return match[0] if path.is_relative_to(docs) and path.is_file() else match[1]

    pieces = CODE_BLOCK.split(text)
    return "".join(piece if piece.startswith("```") else LINK.sub(kept, piece) for piece in pieces)


def title(page: Path) -> str:
    return page.read_text().partition("\n")[0].removeprefix("# ")


def commands(command: Any, path: str) -> Iterator[str]:
    """Help of a command and of those below it."""
    context = typer.Context(command, info_name=path)
    if not getattr(command, "commands", None) and not hasattr(command, "list_commands"):
        usage = " ".join(command.collect_usage_pieces(context))
        yield f"## {path}\n\n{cell(command.help)}\n\n    {path} {usage}\n"
        rows = [each.get_help_record(context) for each in command.get_params(context)]
        shown = [f"| `{name}` | {cell(text)} |" for name, text in filter(None, rows) if not name.startswith("--help")]
        if shown:
            yield "\n".join(["| | |", "|---|---|", *shown]) + "\n"
        return
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        if not found.hidden:
            yield from commands(found, f"{path} {name}")


def command_reference() -> str:
    head = "# Commands\n\nWhat each command takes. How they behave: [the command line](../cli.md).\n\n"
    return head + "\n".join(commands(typer.main.get_command(app), "shardd"))


def setting_reference() -> str:
    head = "# Settings and variables\n\nWhat each means: [configuration](../configuration.md).\n\n"
    rows = [f"| `{key.path}` | `SHARDD_{environment_suffix(key.path)}` |" for key in KEYS]
    return head + "\n".join(["| key | variable |", "|---|---|", *rows]) + "\n"


def decisions(adr: Path) -> str:
    rows = [f"- [{title(page)}]({page.name})" for page in sorted(adr.glob("0*.md"))]
    return "# Decisions\n\nWhat was decided, why, and what was measured.\n\n" + "\n".join(rows) + "\n"


def stage(into: Path) -> None:
    shutil.rmtree(into, ignore_errors=True)
    docs = into / "docs"
    shutil.copytree(PROJECT / "docs", docs)
    (docs / "start.md").rename(docs / "index.md")
    (docs / "adr/README.md").write_text(decisions(docs / "adr"))
    (docs / "reference").mkdir()
    (docs / "reference/commands.md").write_text(command_reference())
    (docs / "reference/settings.md").write_text(setting_reference())
    (docs / "reference/client.md").write_text(client_reference())
    (docs / "reference/metrics.md").write_text(metric_reference())
    for page in docs.rglob("*.md"):
        text = re.sub(
            r"\((?:\.\./)*start\.md", lambda found: found[0].replace("start.md", "index.md"), page.read_text()
        )
        page.write_text(inside(text, page, docs.resolve()))
    protocol = ["protocol/README.md", *sorted(f"protocol/{p.name}" for p in (docs / "protocol").glob("[a-z]*.md"))]
    inner = ["ARCHITECTURE.md", "life-of-a-request.md", "contributing.md", "adr/README.md"]
    records = sorted(f"adr/{page.name}" for page in (docs / "adr").glob("0*.md"))
    settings = {
        "site_name": "shardd",
        "site_description": "A persistent message streaming server that Apache Iggy clients talk to unchanged",
        "docs_dir": "docs",
        "site_dir": "../site",
        "use_directory_urls": False,
        "theme": {"name": "material", "font": False, "features": ["navigation.sections", "content.code.copy"]},
        "markdown_extensions": ["admonition", "tables", "attr_list", "fenced_code", {"toc": {"permalink": True}}],
        "plugins": ["search"],
        "validation": {"nav": {"omitted_files": "warn"}, "links": {"anchors": "warn", "unrecognized_links": "warn"}},
        "nav": [*NAVIGATION, {"Protocol": protocol}, {"How it is built": [*inner, {"Decisions": records}]}],
    }
    (into / "mkdocs.yml").write_text(json.dumps(settings, indent=2))  # which is YAML, too


if __name__ == "__main__":
    stage(Path(sys.argv[1]).resolve())
