"""`shardd drain`: the server stops when its clients have gone."""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path
from typing import Final

import typer

from shardd.cli.holder import NoServerError, holder_of
from shardd.cli.options import settings_of
from shardd.server.supervisor import STOP_KILL_S

_SLOW_MACHINE_S: Final = 20.0  # beyond the time after which the supervisor kills its workers


def drain_server(config: Path | None, data: Path | None, timeout_s: float) -> int:
    """Exit status. Who interrupts this ends the waiting; the server goes on draining."""
    settings = settings_of(config, data)
    try:
        supervisor = holder_of(settings.system.data_directory)
        process = os.pidfd_open(supervisor)
        signal.pidfd_send_signal(process, signal.SIGUSR2)
    except (NoServerError, ProcessLookupError, PermissionError) as error:
        typer.echo(f"shardd: {error}", err=True)
        return 1
    typer.echo(f"process {supervisor} takes no more clients")
    if _ended(process, timeout_s):
        typer.echo("all clients have gone, it has stopped")
        return 0
    signal.pidfd_send_signal(process, signal.SIGTERM)
    stopped = _ended(process, STOP_KILL_S + _SLOW_MACHINE_S)
    typer.echo(
        f"shardd: clients were left after {timeout_s:g} s: it {'has stopped' if stopped else 'is told to stop'}",
        err=True,
    )
    return 1


def _ended(process: int, within_s: float) -> bool:
    poller = select.poll()
    poller.register(process, select.POLLIN)
    return bool(poller.poll(within_s * 1000))
