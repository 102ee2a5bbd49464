"""`shardd doctor`: checks without a running server."""

from __future__ import annotations

import typer

from shardd.cli.doctor_state import state

doctor_app = typer.Typer(no_args_is_help=True, help="Checks.", rich_markup_mode=None)


@doctor_app.callback()
def doctor() -> None:
    """Checks."""


doctor_app.command()(state)
