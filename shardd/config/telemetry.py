"""`telemetry.*`: traces for a collector of OpenTelemetry."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

import msgspec

TRANSPORTS: Final = ("http",)
ENDPOINT: Final = "http://localhost:4318/v1/traces"
SERVICE_NAME_CHARACTERS_MAX: Final = 255


class Traces(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`endpoint`: takes OTLP in protobuf by POST. `sample_ratio`: of the traces that begin here, 0 to 1."""

    transport: str
    endpoint: str
    sample_ratio: float

    @property
    def sample_every(self) -> int:
        """One of so many requests that the engine answers alone; 0: none."""
        return 0 if self.sample_ratio <= 0 else max(1, round(1 / self.sample_ratio))


class Telemetry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    enabled: bool
    service_name: str
    traces: Traces


def parse_transport(value: object) -> str:
    """ValueError."""
    if value not in TRANSPORTS:
        raise ValueError(f"must be http, not {value!r}: OTLP over gRPC is not spoken")
    return str(value)


def parse_endpoint(value: object) -> str:
    """ValueError."""
    parts = urlsplit(value) if isinstance(value, str) else None
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f'must be a URL as "http://localhost:4318/v1/traces", not {value!r}')
    return str(value)


def parse_service_name(value: object) -> str:
    """ValueError."""
    if not isinstance(value, str) or not 1 <= len(value) <= SERVICE_NAME_CHARACTERS_MAX or not value.isprintable():
        raise ValueError(f"must be a name of 1 to {SERVICE_NAME_CHARACTERS_MAX} characters")
    return value


def parse_ratio(value: object) -> float:
    """ValueError."""
    number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else -1.0
    if not 0 <= number <= 1:
        raise ValueError(f"must be between 0 and 1, not {value!r}")
    return number
