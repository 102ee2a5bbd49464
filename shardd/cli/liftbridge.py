"""`shardd-liftbridge`: starts the server with the command line and the YAML file of a Liftbridge server, so that what
was deployed for one goes on unchanged (docs/liftbridge.md#launcher)."""

from __future__ import annotations

import os
import secrets
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
from immutables import Map

from shardd.cli.offline import ensure_root, locked
from shardd.cli.serve import EXIT_CONFIG, EXIT_STARTUP, ServeOptions, serve_until_stopped
from shardd.cli.standard import carried_out
from shardd.config.liftbridge_yaml import LiftbridgeConfigError, Translated, read_yaml, translate
from shardd.config.loader import ConfigError, load_settings
from shardd.config.schema import Settings
from shardd.metadata.apply import ApplyError
from shardd.metadata.commands import CreateStream, CreateUser
from shardd.metadata.errors import LogError
from shardd.metadata.offline import OfflineError, OfflineMetadata
from shardd.metadata.state import Permissions
from shardd.protocol.permissions import StreamPermissions
from shardd.runtime.password_hash import hash_password
from shardd.server.data_directory import write_atomically
from shardd.server.errors import StartupError

USER: Final = "liftbridge"
_MODULES: Final = ("google.protobuf", "grpc", "yaml")
_NATS: Final = "liftbridge.nats.servers"
_LOCK_WAIT_S: Final = 5.0  # workers of a supervisor that was killed
_PASSWORD_FILE: Final = "liftbridge.nats-password"
_OF_ANOTHER_SERVER: Final = ("raft", "liftbridge")  # what only Liftbridge has in its data directory

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


class _StartRefusedError(Exception):
    """A refused start: its problems as sentences, and the exit status."""

    def __init__(self, problems: list[str], status: int = EXIT_CONFIG) -> None:
        super().__init__("\n".join(problems))
        self.problems, self.status = problems, status


@app.command()
def liftbridge(
    config: Annotated[Path | None, typer.Option("--config", "-c", help="Settings of Liftbridge, a YAML file.")] = None,
    server_id: Annotated[str | None, typer.Option("--server-id", "--id", help="How clients know this server.")] = None,
    namespace: Annotated[str | None, typer.Option("--namespace", "--ns", help="The native stream.")] = None,
    nats_servers: Annotated[
        list[str] | None, typer.Option("--nats-servers", "-n", help="Whose messages are stored.")
    ] = None,
    embedded_nats: Annotated[
        bool, typer.Option("--embedded-nats", "-e", help="NATS publishers connect to this server itself.")
    ] = False,
    embedded_nats_config: Annotated[
        str | None, typer.Option("--embedded-nats-config", "--nc", help="Has no effect.")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option("--data-dir", "-d", help="Data directory of shardd.")] = None,
    port: Annotated[int | None, typer.Option("--port", "-p", min=0, max=65535, help="Where clients connect.")] = None,
    tls_cert: Annotated[str | None, typer.Option("--tls-cert", help="Certificate of the server.")] = None,
    tls_key: Annotated[str | None, typer.Option("--tls-key", help="Its private key.")] = None,
    level: Annotated[str | None, typer.Option("--level", "-l", help="Of the log.")] = None,
    raft_bootstrap_seed: Annotated[bool, typer.Option("--raft-bootstrap-seed", help="Has no effect.")] = False,
    raft_bootstrap_peers: Annotated[
        list[str] | None, typer.Option("--raft-bootstrap-peers", help="Has no effect.")
    ] = None,
) -> None:
    """Run shardd for clients of Liftbridge, with the settings of a Liftbridge server.

    Native settings come from SHARDD_CONFIG_PATH and SHARDD_ variables. Clients without a login act as the user
    liftbridge, which the first start makes. Exit status 0: stopped in order, 1: no start, 2: wrong settings.
    """
    typed: dict[str, object] = {
        "clustering.server.id": server_id,
        "clustering.namespace": namespace,
        "nats.servers": nats_servers,
        "nats.embedded": embedded_nats or None,
        "nats.embedded.config": embedded_nats_config,
        "data.dir": None if data_dir is None else str(data_dir),
        "port": port,
        "tls.cert": tls_cert,
        "tls.key": tls_key,
        "logging.level": level,
        "clustering.raft.bootstrap.seed": raft_bootstrap_seed or None,
        "clustering.raft.bootstrap.peers": raft_bootstrap_peers,
    }
    try:
        options = _prepare(config, {name: value for name, value in typed.items() if value is not None})
    except _StartRefusedError as error:
        for problem in error.problems:
            print(f"shardd-liftbridge: {problem}", file=sys.stderr)
        raise typer.Exit(error.status) from error
    raise typer.Exit(serve_until_stopped(options))


def _prepare(config: Path | None, typed: dict[str, object]) -> ServeOptions:
    """Settings, and what the first start of this server has to make. _StartRefusedError."""
    missing = [name for name in _MODULES if find_spec(name) is None]
    if missing:
        raise _StartRefusedError([f'{", ".join(missing)} cannot be imported; pip install "shardd[liftbridge]"'])
    try:
        given = read_yaml(config) if config is not None else {}
        if "port" in typed:
            given.pop("listen", None)  # it names the port to bind, too
        translated = translate(given | typed)
    except LiftbridgeConfigError as error:
        place = "" if config is None else f"{config}: "
        raise _StartRefusedError([f"{place}{problem}" for problem in error.problems]) from error
    options = ServeOptions(_native_file(), translated=translated.values)
    try:
        first = {key: value for key, value in translated.values.items() if key != _NATS}  # its user is known later
        settings = load_settings(options.config, os.environ, translated=first).settings
        with locked(_data_directory(settings), _LOCK_WAIT_S):
            _make_users(settings, translated)
        load_settings(options.config, os.environ, translated=translated.values)
    except ConfigError as error:
        raise _StartRefusedError(error.problems) from error
    except ValueError as error:
        raise _StartRefusedError([str(error)]) from error
    except (StartupError, OfflineError, LogError, ApplyError, OSError) as error:
        raise _StartRefusedError([str(error)], EXIT_STARTUP) from error
    for warning in translated.warnings:
        print(f"shardd-liftbridge: warning: {warning}", file=sys.stderr)
    return msgspec.structs.replace(options, translated=translated.values)


def _native_file() -> Path | None:
    path = os.environ.get("SHARDD_CONFIG_PATH", "")
    return Path(path) if path else None


def _data_directory(settings: Settings) -> Path:
    """_StartRefusedError for one of Liftbridge itself."""
    data = settings.system.data_directory
    found = [name for name in _OF_ANOTHER_SERVER if os.path.lexists(data / name)]
    if found:
        raise _StartRefusedError(
            [f"{data} is of Liftbridge: `shardd import liftbridge {data} --data DIR`, then start with -d DIR"],
            EXIT_STARTUP,
        )
    return data


def _make_users(settings: Settings, translated: Translated) -> None:
    """The user as whom clients without a login act, when there has never been one beside root: at the first start, also
    behind an import. Never root, and with rights for the streams of Liftbridge alone. Later it may have been changed or
    deleted, and stays as it is."""
    data = settings.system.data_directory
    with OfflineMetadata(data) as metadata:
        ensure_root(metadata, os.environ)
        if len(metadata.state.users) == 1 and not metadata.state.free_user_ids:
            _make_user(metadata, settings.liftbridge.namespace)
        known = USER in metadata.state.user_ids
    if known:
        translated.values["liftbridge.anonymous_user"] = USER
        translated.values["liftbridge.nats.user"] = USER
    else:
        translated.values.pop(_NATS, None)
        translated.warnings.append(f"{data} has no user {USER}: clients need a login, and no NATS server is asked")
    for key, secret in translated.secrets.items():
        path = settings.system.runtime_directory / _PASSWORD_FILE
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(path, secret.encode())
        translated.values[key] = str(path)


def _make_user(metadata: OfflineMetadata, namespace: str) -> None:
    """With a password that nobody knows. OfflineError."""
    if namespace not in metadata.state.stream_ids:
        metadata.submit(CreateStream(namespace))
    rights = StreamPermissions(
        read_stream=True, manage_topics=True, read_topics=True, poll_messages=True, send_messages=True
    )
    permissions = Permissions(streams=Map({metadata.state.stream_ids[namespace]: rights}))
    metadata.submit(CreateUser(USER, hash_password(secrets.token_urlsafe(32)), True, permissions))


def main() -> None:
    carried_out(lambda: app(prog_name="shardd-liftbridge"))


if __name__ == "__main__":
    main()
