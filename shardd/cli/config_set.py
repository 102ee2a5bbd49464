"""`shardd config set`: one key of the settings file, and of the server that runs with it. Comments, order and every
other key of the file stay as they are."""

from __future__ import annotations

import contextlib
import difflib
import os
import signal
import tempfile
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import tomlkit

from shardd.cli.holder import NoServerError, holder_of
from shardd.config.key import Key
from shardd.config.keys import KEYS_BY_PATH, value_of
from shardd.config.live import LIVE
from shardd.config.loader import ConfigError, Loaded, load_settings
from shardd.config.schema import Settings
from shardd.log.layout import sync_directory
from shardd.server.data_directory import RUNTIME_CONFIG_NAME

_TAKEN_WITHIN_S: Final = 10.0


class SettingRefusedError(Exception):
    """A refused change of a setting: a sentence for the user, and the exit status of the command."""

    def __init__(self, sentence: str, status: int = 2) -> None:
        super().__init__(sentence)
        self.status = status


def set_key(file: Path | None, path: str, text: str, data: Path | None, *, dry_run: bool) -> str:
    """What there is to say when it is done. Raises SettingRefusedError; nothing has changed then, unless it says so."""
    if file is None:
        raise SettingRefusedError("which file? --config FILE, or SHARDD_CONFIG_PATH")
    if path not in KEYS_BY_PATH:
        near = difflib.get_close_matches(path, KEYS_BY_PATH, n=1, cutoff=0.0)[0]
        raise SettingRefusedError(f"there is no key {path}; the closest one is {near}")
    old, key = file.resolve(), KEYS_BY_PATH[path]
    command_line = {"system.path": str(data)} if data is not None else {}
    try:
        before = value_of(_load(old, command_line, file).settings, key)
        changed = _changed(old, path, _value(text))
        with tempfile.NamedTemporaryFile("w", encoding="utf-8") as trial:
            trial.write(changed)
            trial.flush()
            after = _load(Path(trial.name), command_line, file)
        origin = after.origins[path].replace(trial.name, str(file))
        if origin != str(file):
            raise SettingRefusedError(f"{path} is set by {origin}, which counts more than {file}", 1)
        shown = key.toml(value_of(after.settings, key))
        if dry_run:
            return f"{path} is {key.toml(before)}, it would be {shown}"
        _replace(old, changed)
    except OSError as error:
        raise SettingRefusedError(f"{file}: {error.strerror}", 1) from error
    return f"{path} is {shown} in {file}: {_tell_server(after.settings, key)}"


def _load(file: Path, command_line: Mapping[str, object], said_of: Path) -> Loaded:
    try:
        return load_settings(file, os.environ, command_line)
    except ConfigError as error:
        raise SettingRefusedError("; ".join(error.problems).replace(str(file), str(said_of))) from error


def _value(text: str) -> object:
    """As in the file: `5`, `true`, `["a"]`, `"1 s"`; what is none of them is a text without its quotes."""
    with contextlib.suppress(tomllib.TOMLDecodeError):
        found = tomllib.loads(f"value = {text}")
        if len(found) == 1:
            return found["value"]
    return text


def _changed(file: Path, path: str, value: object) -> str:
    """The text of the file with that one value. SettingRefusedError when something else would change with it."""
    old = file.read_text(encoding="utf-8")
    document = tomlkit.parse(old)
    *tables, name = path.split(".")
    table: Any = document
    for part in tables:
        if part not in table:
            table[part] = tomlkit.table()
        table = table[part]
    table[name] = value
    new = tomlkit.dumps(document)
    wanted = tomllib.loads(old)
    at = wanted
    for part in tables:
        at = at.setdefault(part, {})
    at[name] = value
    if tomllib.loads(new) != wanted:
        raise SettingRefusedError(f"{file} is written in a way in which {path} cannot be changed alone: edit it", 1)
    return new


def _replace(old: Path, text: str) -> None:
    """Whole or not at all; owner and mode stay."""
    before = old.stat()
    fd, name = tempfile.mkstemp(dir=old.parent, prefix=f".{old.name}-")
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            os.fchmod(fd, before.st_mode & 0o7777)
            if (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
                os.fchown(fd, before.st_uid, before.st_gid)
            file.write(text)
            file.flush()
            os.fsync(fd)
        Path(name).replace(old)
        sync_directory(old.parent)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _tell_server(settings: Settings, key: Key) -> str:
    """What the server that runs on the same data directory does with it."""
    system = settings.system
    try:
        supervisor = holder_of(system.data_directory)
    except NoServerError as error:
        return f"{error}, the next start takes it"
    if key.path not in LIVE:
        return f"process {supervisor} needs a restart for it"
    try:
        os.kill(supervisor, signal.SIGUSR1)
    except OSError as error:
        raise SettingRefusedError(
            f"the file is changed, but process {supervisor} was not told: {error.strerror}", 1
        ) from error
    runtime, wanted = system.runtime_directory / RUNTIME_CONFIG_NAME, value_of(settings, key)
    deadline = time.monotonic() + _TAKEN_WITHIN_S
    while time.monotonic() < deadline:
        if _running_value(runtime, key) == wanted:
            return f"process {supervisor} has taken it"
        time.sleep(0.05)
    raise SettingRefusedError(
        f"the file is changed, but process {supervisor} did not take it in {_TAKEN_WITHIN_S:g} s: was it started with "
        "another file, or a variable? Its log tells",
        1,
    )


def _running_value(runtime: Path, key: Key) -> object:
    """What a running server says of itself; None while it says nothing."""
    try:
        found: Any = tomllib.loads(runtime.read_text(encoding="utf-8"))
        for part in key.path.split("."):
            found = found[part]
        return key.parse(found)
    except (OSError, ValueError, KeyError):
        return None
