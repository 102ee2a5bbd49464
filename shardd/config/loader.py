"""Puts the settings together: defaults < those of Liftbridge < file < IGGY_ names < SHARDD_ names < command line
(docs/configuration.md).

What this server's own file and SHARDD_ names ask for and it does not do is an error, never ignored. IGGY_ names that it
does not serve are collected for one warning, so that a deployment made for Apache Iggy starts unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from shardd.config import cluster, issuers
from shardd.config.iggy_keys import NOT_SERVED_PATHS, is_known_to_iggy, is_no_setting
from shardd.config.keys import (
    ACK_PATH,
    ENFORCE_FSYNC_PATH,
    KEYS,
    KEYS_BY_PATH,
    RENAMED,
    build_settings,
    check_together,
    environment_suffix,
)
from shardd.config.schema import Settings

TRANSLATED: Final = "settings of Liftbridge"
_OWN: Final = "SHARDD_"
_IGGY: Final = "IGGY_"
# read elsewhere: by the command line, by `root_user`, by `shardd top`; SHARDD_TEST_* belongs to test programs
_OF_CLIENTS: Final = {"URL", "CONTEXT", "TOKEN", "USERNAME", "PASSWORD", "CLIENT_CODEC"}
_OWN_NO_SETTING: Final = frozenset({"CONFIG_PATH", "ROOT_USERNAME", "ROOT_PASSWORD", *_OF_CLIENTS})
_PATHS_BY_SUFFIX: Final = {environment_suffix(path): path for path in KEYS_BY_PATH}
_READ_ELEMENT: Final = {cluster.OTHERS_PATH: cluster.read_variable, issuers.ISSUERS_PATH: issuers.read_variable}
_RENAMED_BY_SUFFIX: Final = {environment_suffix(path): path for path in RENAMED}


class ConfigError(Exception):
    """All problems of one configuration, one sentence each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class Loaded(msgspec.Struct, frozen=True):
    """`origins`: key path -> "default", the file's path, a variable's name or "command line".
    `not_served` and `unknown`: IGGY_ variables without effect. `renamed`: old names of keys in use -> their places."""

    settings: Settings
    origins: dict[str, str]
    not_served: tuple[str, ...]
    unknown: tuple[str, ...]
    renamed: dict[str, str]

    def warnings(self) -> list[str]:
        """At most one about variables without effect, and one about old names."""
        return [each for each in (self._without_effect(), self._old_names()) if each is not None]

    def _old_names(self) -> str | None:
        names = ", ".join(f"{old} ({place}) is {RENAMED[old]}" for old, place in self.renamed.items())
        return f"these settings have new names, the old ones work for now - {names}" if names else None

    def _without_effect(self) -> str | None:
        parts = []
        if self.not_served:
            parts.append(f"settings of Apache Iggy that shardd does not serve: {', '.join(self.not_served)}")
        if self.unknown:
            parts.append(f"unknown settings: {', '.join(map(_with_suggestion, self.unknown))}")
        return f"these variables have no effect - {'; '.join(parts)}" if parts else None


class _Given:
    """What file, environment and command line say, later ones over earlier ones. `values`: key path -> value, origin.
    `own_names` and `old_names`: by which name a renamed key was given -> where, the last time."""

    def __init__(self) -> None:
        self.values: dict[str, tuple[object, str]] = {}
        self.own_names: dict[str, str] = {}
        self.old_names: dict[str, str] = {}
        self.problems: list[str] = []

    def put(self, name: str, value: object, origin: str) -> None:
        """`name`: the path of a key, or an old one of `RENAMED`."""
        names = self.old_names if name in RENAMED else self.own_names
        names[name] = origin
        self.values[RENAMED.get(name, name)] = (value, origin)

    def told_twice(self) -> list[str]:
        """Which of the two counts would be a guess."""
        return [
            f"{old} ({place}) is the old name of {RENAMED[old]} ({self.own_names[RENAMED[old]]}): remove one of them"
            for old, place in self.old_names.items()
            if RENAMED[old] in self.own_names
        ]


def load_settings(
    file: Path | None,
    environment: Mapping[str, str],
    command_line: Mapping[str, object] | None = None,
    translated: Mapping[str, object] | None = None,
) -> Loaded:
    """`command_line`: values by key path. `translated`: the same, from settings of another server; everything else
    counts more. Raises ConfigError with all problems."""
    given = _Given()
    for path, value in (translated or {}).items():
        given.put(path, value, TRANSLATED)
    if file is not None:
        _read_file(file, given)
    not_served, unknown = _read_environment(environment, given)
    for path, value in (command_line or {}).items():
        given.put(path, value, "command line")
    problems = given.problems + given.told_twice()

    values: dict[str, Any] = {}
    raw = {key.path: (key.default, "default") for key in KEYS} | given.values
    for path, (value, origin) in raw.items():
        try:
            values[path] = KEYS_BY_PATH[path].parse(value)
        except ValueError as error:
            place = "" if origin == "default" else f" ({origin})"
            problems.append(f"{path}{place}: {error}")
    settings = None
    if not problems:
        problems += _reconcile_level(values, {path: origin for path, (_, origin) in raw.items()})
    if not problems:
        settings = build_settings(values)
        problems += check_together(settings)
    if problems or settings is None:
        raise ConfigError(problems)
    origins = {path: origin for path, (_, origin) in raw.items()}
    return Loaded(settings, origins, not_served, unknown, given.old_names)


def _strength(origin: str) -> int:
    """How late an origin comes in the order of precedence."""
    if origin in ("default", "command line"):
        return 0 if origin == "default" else 4
    return 3 if origin.startswith(_OWN) else 2 if origin.startswith(_IGGY) else 1


def _reconcile_level(values: dict[str, Any], origins: Mapping[str, str]) -> list[str]:
    """Iggy's `enforce_fsync = true` means the level durable. Another level is overruled when it comes from a weaker
    origin and is a contradiction otherwise; returns its sentence."""
    ack, origin, own = values[ACK_PATH], origins[ENFORCE_FSYNC_PATH], origins[ACK_PATH]
    if not values[ENFORCE_FSYNC_PATH] or ack == "durable":
        return []
    if _strength(own) >= _strength(origin):
        return [f'{ENFORCE_FSYNC_PATH} ({origin}) asks for the level durable, {ACK_PATH} ({own}) for "{ack}"']
    values[ACK_PATH] = "durable"
    return []


def _read_file(file: Path, given: _Given) -> None:
    import tomllib  # many servers have no file

    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        given.problems.append(f"{file}: {error.strerror}")
        return
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        given.problems.append(f"{file}: {error}")
        return
    for path, value in _leaves(table, ""):
        if path in KEYS_BY_PATH or path in RENAMED:
            given.put(path, value, str(file))
        else:
            given.problems.append(_refusal(path, str(file)))


def _leaves(table: Mapping[str, object], prefix: str) -> Iterator[tuple[str, object]]:
    for name, value in table.items():
        if isinstance(value, dict) and prefix + name not in KEYS_BY_PATH:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _refusal(path: str, place: str) -> str:
    near = _nearest(path, KEYS_BY_PATH)
    why = "a setting of Apache Iggy that shardd does not serve" if path in NOT_SERVED_PATHS else "unknown key"
    return f"{path} ({place}): {why}; the closest known key is {near[0]}"


def _nearest(name: str, known: Iterable[str], likeness_min: float = 0.0) -> list[str]:
    """At most one."""
    from difflib import get_close_matches  # rare: of names that are wrong

    return get_close_matches(name, [*known], n=1, cutoff=likeness_min)


def _read_environment(environment: Mapping[str, str], given: _Given) -> tuple[tuple[str, ...], tuple[str, ...]]:
    not_served: list[str] = []
    unknown: list[str] = []
    for prefix in (_IGGY, _OWN):  # ours last: it wins
        lists: dict[str, dict[int, dict[str, Any]]] = {path: {} for path in _READ_ELEMENT}
        for variable in sorted(environment):
            suffix = variable.removeprefix(prefix)
            if suffix == variable or not environment[variable]:
                continue
            path = _PATHS_BY_SUFFIX.get(suffix) or _RENAMED_BY_SUFFIX.get(suffix)
            if path is not None:
                given.put(path, environment[variable], variable)
            elif path := _read_element(suffix, environment[variable], lists):
                entries = [entry for _, entry in sorted(lists[path].items())]
                given.put(path, entries, f"{prefix}{environment_suffix(path)}_*")
            elif prefix == _OWN:
                if suffix not in _OWN_NO_SETTING and not suffix.startswith("TEST_"):
                    given.problems.append(_refusal_of_variable(variable, suffix))
            elif is_known_to_iggy(suffix):
                not_served.append(variable)
            elif not is_no_setting(suffix):
                unknown.append(variable)
    return tuple(not_served), tuple(unknown)


def _read_element(suffix: str, text: str, lists: dict[str, dict[int, dict[str, Any]]]) -> str | None:
    """Enters a variable of an element into its list: the path of that."""
    return next((path for path, read in _READ_ELEMENT.items() if read(suffix, text, lists[path])), None)


def _refusal_of_variable(variable: str, suffix: str) -> str:
    near = _nearest(suffix, _PATHS_BY_SUFFIX)
    why = "a setting of Apache Iggy that shardd does not serve" if is_known_to_iggy(suffix) else "unknown setting"
    return f"{variable}: {why}; the closest known one is {_OWN}{near[0]}"


def _with_suggestion(variable: str) -> str:
    near = _nearest(variable.removeprefix(_IGGY), _PATHS_BY_SUFFIX, likeness_min=0.8)
    return f"{variable} (did you mean {_IGGY}{near[0]}?)" if near else variable
