"""`shardd serve`: settings and the first user from all sources, then the supervisor."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import setproctitle

from shardd import __version__
from shardd.cli.doors import doors_of
from shardd.config.loader import ConfigError, Loaded, load_settings
from shardd.config.root_user import RootUser, resolve_root_user
from shardd.observability.logs import set_up_logs
from shardd.runtime.recent_logs import RecentLogs
from shardd.server.doors import DoorSpecification
from shardd.server.errors import StartupError
from shardd.server.start import root_exists, run_supervisor
from shardd.server.worker_template import WorkerTemplate

EXIT_STARTUP: Final = 1
EXIT_CONFIG: Final = 2
_log = logging.getLogger(__name__)


class ServeOptions(msgspec.Struct, frozen=True):
    """The command line of `shardd serve`. `translated`: settings of another server, by their key paths here."""

    config: Path | None = None
    data: Path | None = None
    dev: bool = False
    fresh: bool = False
    default_credentials: bool = False
    follower: bool = False
    translated: Mapping[str, object] = {}


def serve_until_stopped(
    options: ServeOptions, doors: Sequence[DoorSpecification] = (), template: WorkerTemplate | None = None
) -> int:
    """`doors`: beside those of the settings. `template`: what makes workers; else they start from nothing.

    Exit status: 0 stopped in order, 1 no start or a worker had to be killed,
    2 wrong configuration."""
    if options.dev and options.data is not None:
        print("shardd: --dev has a temporary data directory; leave out --data", file=sys.stderr)
        return EXIT_CONFIG
    temporary = tempfile.mkdtemp(prefix="shardd-dev-") if options.dev else None
    try:
        return _serve(options, Path(temporary) if temporary else options.data, doors, template)
    finally:
        if temporary:
            shutil.rmtree(temporary, ignore_errors=True)


def _serve(
    options: ServeOptions, data: Path | None, doors: Sequence[DoorSpecification], template: WorkerTemplate | None
) -> int:
    try:
        loaded, root = _configure(options, data)
        doors = [*doors_of(loaded.settings), *doors]
    except ConfigError as error:
        for problem in error.problems:
            print(f"shardd: {problem}", file=sys.stderr)
        return EXIT_CONFIG
    settings = loaded.settings
    set_up_logs("supervisor", settings.system.logging.level, settings.system.logging.format)
    RecentLogs("supervisor").install()  # what is printed (a generated password) is not a log line and never among them
    setproctitle.setproctitle("shardd: supervisor")
    for warning in loaded.warnings():
        _log.warning("%s", warning)
    try:
        return run_supervisor(
            settings,
            root,
            fresh=options.fresh,
            version=__version__,
            read_settings=lambda: _load(options, data).settings,
            doors=doors,
            template=template,
        )
    except StartupError as error:
        _log.error("%s", error)
        return EXIT_STARTUP


def _load(options: ServeOptions, data: Path | None) -> Loaded:
    """ConfigError."""
    command_line: dict[str, object] = {"system.path": str(data)} if data is not None else {}
    if options.dev:
        command_line["tcp.tls.self_signed"] = True  # for --dev with TLS on and no files
    if options.follower:
        command_line["cluster.follower"] = True
    return load_settings(options.config, os.environ, command_line, options.translated)


def _configure(options: ServeOptions, data: Path | None) -> tuple[Loaded, RootUser]:
    """Raises ConfigError with the problems of the settings and of the first user together."""
    problems: list[str] = []
    loaded: Loaded | None = None
    try:
        loaded = _load(options, data)
    except ConfigError as error:
        problems += error.problems

    known = loaded is not None and not options.fresh and root_exists(loaded.settings.system.data_directory)
    # once the first user exists, the variables for it have no effect (docs/protocol/accounts.md#first-user)
    environment = {} if options.dev or known else os.environ
    root: RootUser | None = None
    try:
        root = resolve_root_user(environment, options.default_credentials or options.dev)
    except ValueError as error:
        problems.append(str(error))
    if problems or loaded is None or root is None:
        raise ConfigError(problems)
    return loaded, root
