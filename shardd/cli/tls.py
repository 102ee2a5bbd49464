"""`shardd tls`: certificates of a running server."""

from __future__ import annotations

import os
import signal
import time

import typer

from shardd.cli.holder import NoServerError, holder_of
from shardd.cli.options import ConfigFile, DataDirectory, settings_of
from shardd.server.tls_files import CertificateError, read_tls

tls_app = typer.Typer(help="Certificates of a running server.", rich_markup_mode=None, no_args_is_help=True)


@tls_app.callback()
def tls() -> None:
    """Certificates of a running server."""


@tls_app.command()
def reload(
    config: ConfigFile = None,
    data: DataDirectory = None,
) -> None:
    """Makes the server read its certificates and keys again. No connection is lost.

    Exit status 0: it was told; 1: the files are wrong, or no server runs; 2: the settings are wrong.
    """
    settings = settings_of(config, data)
    try:
        read, now_s = read_tls(settings.all_tls), time.time()
        if not read.ports:
            raise CertificateError("there is nothing to reload: TLS is off in these settings")
        read.check_ends(now_s)
        supervisor = holder_of(settings.system.data_directory)
        os.kill(supervisor, signal.SIGUSR1)
    except (CertificateError, NoServerError, ProcessLookupError, PermissionError) as error:
        typer.echo(f"shardd: {error}", err=True)
        raise typer.Exit(1) from error
    for sentence in read.sentences(now_s):
        typer.echo(f"warning: {sentence}")
    typer.echo(f"process {supervisor} reads its certificates again; its log says how that went")
