"""Which doors a server has: what its settings ask for."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from shardd import __version__
from shardd.config.cpus import CpuAllocationError, own_cpus
from shardd.config.loader import ConfigError
from shardd.config.schema import Settings
from shardd.doors.http import options as http
from shardd.doors.liftbridge import options as liftbridge
from shardd.doors.metrics import options as metrics
from shardd.doors.quic import options as quic
from shardd.observability.traces import missing_modules
from shardd.server.doors import DoorSpecification

_MODULES: Final = {
    "http": ("httptools", "jwt", "starlette", "uvicorn"),
    "http.jwt.trusted_issuers": ("cryptography",),
    "liftbridge": ("grpc", "grpc_health", "grpc_reflection"),
    "metrics": ("httptools", "uvicorn"),
    "quic": ("aioquic",),
}


def doors_of(settings: Settings) -> list[DoorSpecification]:
    """ConfigError when a door cannot run here."""
    doors = []
    if settings.telemetry.enabled and (missing := missing_modules()):
        raise ConfigError(
            [f'telemetry.enabled: {", ".join(missing)} cannot be imported; pip install "shardd[telemetry]"']
        )
    if settings.http.enabled:
        _check_modules("http")
        if settings.http.jwt.trusted_issuers:
            _check_modules("http.jwt.trusted_issuers")
        doors += _http_doors(settings)
    if settings.quic.enabled:
        _check_modules("quic")
        addresses = {"quic.address": settings.quic.address}
        options, cpus = quic.encode_options(settings), _cpus("quic.cpus", settings.quic.cpus)
        doors.append(DoorSpecification(quic.DOOR_NAME, quic.COMMAND, addresses, options, cpus=cpus))
    if settings.liftbridge.enabled:
        _check_modules("liftbridge")
        doors.append(_liftbridge_door(settings))
    if settings.metrics.enabled:
        _check_modules("metrics")
        addresses = {"metrics.address": settings.metrics.address}
        doors.append(
            DoorSpecification(
                metrics.DOOR_NAME, metrics.COMMAND, addresses, _metrics_options(settings), before_workers=True
            )
        )
    return doors


def _http_doors(settings: Settings) -> list[DoorSpecification]:
    """They take connections from one socket."""
    addresses = {"http.address": settings.http.address}
    options, cpus = http.encode_options(settings), _cpus("http.cpus", settings.http.cpus)
    first = DoorSpecification(http.DOOR_NAME, http.COMMAND, addresses, options, cpus=cpus)
    names = [f"{http.DOOR_NAME}-{number}" for number in range(2, settings.http.processes + 1)]
    others = [DoorSpecification(each, http.COMMAND, {}, options, cpus=cpus, listens_as=first.name) for each in names]
    return [first, *others]


def _liftbridge_door(settings: Settings) -> DoorSpecification:
    addresses = {"liftbridge.address": settings.liftbridge.address}
    if settings.liftbridge.nats_server.enabled:
        addresses["liftbridge.nats_server.address"] = settings.liftbridge.nats_server.address
    options, cpus = liftbridge.encode_options(settings), _cpus("liftbridge.cpus", settings.liftbridge.cpus)
    return DoorSpecification(liftbridge.DOOR_NAME, liftbridge.COMMAND, addresses, options, cpus=cpus)


def _cpus(key: str, cpus: str) -> tuple[int, ...]:
    try:
        return tuple(own_cpus(cpus))
    except CpuAllocationError as error:
        raise ConfigError([f"{key}: {error}"]) from None


def _check_modules(section: str) -> None:
    missing = [name for name in _MODULES[section] if find_spec(name) is None]
    if missing:
        key = section if section.count(".") else f"{section}.enabled"
        extra = section if section in ("quic", "liftbridge") else "http"
        problem = f'{key}: {", ".join(missing)} cannot be imported; pip install "shardd[{extra}]"'
        raise ConfigError([problem])


def _metrics_options(settings: Settings) -> bytes:
    try:
        return metrics.encode_options(settings, __version__)
    except ValueError as error:
        raise ConfigError([f"metrics.token_file: {error}"]) from None
