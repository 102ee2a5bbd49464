"""Puts the settings together: defaults < file < IGGY_ names < SHARDD_ names < command line (docs/configuration.md).

What this server's own file and SHARDD_ names ask for and it does not do is an error, never ignored. IGGY_ names that it
does not serve are collected for one warning, so that a deployment made for Apache Iggy starts unchanged.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from shardd.config.cluster import OTHERS_PATH, read_variable
from shardd.config.iggy_keys import NOT_SERVED_PATHS, is_known_to_iggy, is_no_setting
from shardd.config.keys import ACK_PATH, ENFORCE_FSYNC_PATH, KEYS, KEYS_BY_PATH, build_settings, check_together
from shardd.config.schema import Settings

_OWN: Final = "SHARDD_"
_IGGY: Final = "IGGY_"
# read elsewhere: by the command line, by `root_user`, by `shardd top`; SHARDD_TEST_* belongs to test programs
_OWN_NO_SETTING: Final = frozenset({"CONFIG_PATH", "ROOT_USERNAME", "ROOT_PASSWORD", "USERNAME", "PASSWORD"})
_KEYS_BY_SUFFIX: Final = {key.environment_suffix: key for key in KEYS}


class ConfigError(Exception):
    """All problems of one configuration, one sentence each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Loaded:
    """`origins`: key path -> "default", the file's path, a variable's name or "command line".
    `not_served` and `unknown`: IGGY_ variables without effect."""

    settings: Settings
    origins: dict[str, str]
    not_served: tuple[str, ...]
    unknown: tuple[str, ...]

    def warning(self) -> str | None:
        """The one warning about IGGY_ variables that have no effect."""
        parts = []
        if self.not_served:
            parts.append(f"settings of Apache Iggy that shardd does not serve: {', '.join(self.not_served)}")
        if self.unknown:
            parts.append(f"unknown settings: {', '.join(map(_with_suggestion, self.unknown))}")
        return f"these variables have no effect - {'; '.join(parts)}" if parts else None


def load_settings(
    file: Path | None, environment: Mapping[str, str], command_line: Mapping[str, object] | None = None
) -> Loaded:
    """`command_line`: values by key path. Raises ConfigError with all problems."""
    problems: list[str] = []
    raw: dict[str, tuple[object, str]] = {key.path: (key.default, "default") for key in KEYS}
    if file is not None:
        _read_file(file, raw, problems)
    not_served, unknown = _read_environment(environment, raw, problems)
    for path, value in (command_line or {}).items():
        raw[path] = (value, "command line")

    values: dict[str, Any] = {}
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
    return Loaded(settings, {path: origin for path, (_, origin) in raw.items()}, not_served, unknown)


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


def _read_file(file: Path, raw: dict[str, tuple[object, str]], problems: list[str]) -> None:
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        problems.append(f"{file}: {error.strerror}")
        return
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        problems.append(f"{file}: {error}")
        return
    for path, value in _leaves(table, ""):
        if path in KEYS_BY_PATH:
            raw[path] = (value, str(file))
        else:
            problems.append(_refusal(path, str(file)))


def _leaves(table: Mapping[str, object], prefix: str) -> Iterator[tuple[str, object]]:
    for name, value in table.items():
        if isinstance(value, dict) and prefix + name not in KEYS_BY_PATH:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _refusal(path: str, place: str) -> str:
    near = difflib.get_close_matches(path, KEYS_BY_PATH, n=1, cutoff=0.0)
    why = "a setting of Apache Iggy that shardd does not serve" if path in NOT_SERVED_PATHS else "unknown key"
    return f"{path} ({place}): {why}; the closest known key is {near[0]}"


def _read_environment(
    environment: Mapping[str, str], raw: dict[str, tuple[object, str]], problems: list[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    not_served: list[str] = []
    unknown: list[str] = []
    for prefix in (_IGGY, _OWN):  # ours last: it wins
        nodes: dict[int, dict[str, Any]] = {}
        for variable in sorted(environment):
            suffix = variable.removeprefix(prefix)
            if suffix == variable or not environment[variable]:
                continue
            key = _KEYS_BY_SUFFIX.get(suffix)
            if key is not None:
                raw[key.path] = (environment[variable], variable)
            elif read_variable(suffix, environment[variable], nodes):
                raw[OTHERS_PATH] = ([nodes[number] for number in sorted(nodes)], f"{prefix}CLUSTER_NODE_OTHERS_*")
            elif prefix == _OWN:
                if suffix not in _OWN_NO_SETTING and not suffix.startswith("TEST_"):
                    problems.append(_refusal_of_variable(variable, suffix))
            elif is_known_to_iggy(suffix):
                not_served.append(variable)
            elif not is_no_setting(suffix):
                unknown.append(variable)
    return tuple(not_served), tuple(unknown)


def _refusal_of_variable(variable: str, suffix: str) -> str:
    near = difflib.get_close_matches(suffix, _KEYS_BY_SUFFIX, n=1, cutoff=0.0)
    why = "a setting of Apache Iggy that shardd does not serve" if is_known_to_iggy(suffix) else "unknown setting"
    return f"{variable}: {why}; the closest known one is {_OWN}{near[0]}"


def _with_suggestion(variable: str) -> str:
    near = difflib.get_close_matches(variable.removeprefix(_IGGY), _KEYS_BY_SUFFIX, n=1, cutoff=0.8)
    return f"{variable} (did you mean {_IGGY}{near[0]}?)" if near else variable
