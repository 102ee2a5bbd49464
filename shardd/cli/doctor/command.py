"""`shardd doctor`: checks this machine for a server with the given settings. The commands beside it look into data."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
import typer

from shardd.cli.doctor.host import host_findings
from shardd.cli.doctor.log import log
from shardd.cli.doctor.report import Finding, Level, Roots
from shardd.cli.doctor.retention import retention_findings
from shardd.cli.doctor.root import root_password
from shardd.cli.doctor.state import state
from shardd.cli.doctor.storage import storage_findings
from shardd.cli.doctor.tls import tls_findings
from shardd.cli.options import ConfigFile, DataDirectory, settings_of
from shardd.cli.output import harmless, printable
from shardd.config.schema import Settings

doctor_app = typer.Typer(
    help="What this machine means for the server.", rich_markup_mode=None, invoke_without_command=True
)
_MARKS: Final = {Level.OK: "ok     ", Level.WARNING: "warning", Level.PROBLEM: "PROBLEM"}


@doctor_app.callback()
def doctor(
    context: typer.Context,
    config: ConfigFile = None,
    data: DataDirectory = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON array instead of lines.")] = False,
) -> None:
    """Checks the machine for the server with these settings.

    Exit status 0: it could start; 1: it could not; 2: the settings are wrong.
    """
    if context.invoked_subcommand is not None:
        return
    settings = settings_of(config, data)
    findings = examine(settings)
    typer.echo(harmless(msgspec.json.encode(findings).decode()) if as_json else as_lines(findings))
    raise typer.Exit(1 if any(finding.level is Level.PROBLEM for finding in findings) else 0)


def examine(settings: Settings, roots: Roots | None = None) -> list[Finding]:
    """All checks, in the order of the report."""
    roots = roots or Roots()
    return [
        *host_findings(settings, roots),
        *storage_findings(settings, roots),
        *retention_findings(settings),
        *tls_findings(settings),
    ]


def as_lines(findings: list[Finding]) -> str:
    """Two lines for each finding and one about all."""
    width = max(len(finding.check) for finding in findings)
    lines: list[str] = []
    for finding in findings:
        lines.append(f"{_MARKS[finding.level]}  {finding.check:<{width}}  {finding.finding}")
        lines.append(f"{'':{len(_MARKS[Level.OK]) + width + 4}}{finding.meaning}")
    problems = sum(finding.level is Level.PROBLEM for finding in findings)
    warnings = sum(finding.level is Level.WARNING for finding in findings)
    verdict = "the server could not start here" if problems else "the server can start here"
    return "\n".join([*map(printable, lines), f"{verdict}; problems: {problems}, warnings: {warnings}"])


doctor_app.command()(state)
doctor_app.command()(log)
doctor_app.command()(root_password)
