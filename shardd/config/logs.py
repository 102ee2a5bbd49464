"""`system.logging.*`."""

from __future__ import annotations

import msgspec


class Logging(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`level`: trace, debug, info, warn, error or off. `format`: text or json. `audit_file` "": lines of the log."""

    level: str
    format: str
    audit_file: str
