"""Entries about changes that clients have made: as a line of the log, or as a JSON object in a file of its own."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

LOGGER: Final = "shardd.audit"
_MODE: Final = 0o600
_COMPLAINT_INTERVAL_S: Final = 60.0
_log = logging.getLogger(__name__)


class Named(msgspec.Struct, frozen=True):
    id: int
    name: str


class AuditEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """`what`: the objects that the action names; `made`: the id of a new one. Its text is a line of the log, in which
    names are as Python quotes them: a client cannot forge a line."""

    user_id: int
    user: str
    address: str = ""
    door: str = ""
    action: str = ""
    what: dict[str, Named] = {}
    values: dict[str, object] = {}
    made: int | None = None

    def __str__(self) -> str:
        door = f" through door {self.door}" if self.door else ""
        words = [self.action, *(f"{kind} {each.id} ({each.name!r})" for kind, each in self.what.items())]
        words += [f"{name} {value!r}" for name, value in self.values.items()]
        words += [] if self.made is None else [f"makes {self.made}"]
        return f"user {self.user_id} ({self.user!r}) at {self.address or 'no address'}{door}: {' '.join(words)}"


class AuditFile(logging.Handler):
    """Whole lines, appended by every worker; made 0600, never through a link. Opened again when somebody has moved it
    away. What cannot be written goes to the log."""

    def __init__(self, path: str, source: str) -> None:
        super().__init__()
        self._path = Path(path)
        self._source = source
        self._fd = -1
        self._complained_at = -_COMPLAINT_INTERVAL_S

    def emit(self, record: logging.LogRecord) -> None:
        entry = getattr(record, "audit", None)
        if not isinstance(entry, AuditEntry):
            return
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields = {"time": moment.replace("+00:00", "Z"), "source": self._source} | msgspec.to_builtins(entry)
        data = msgspec.json.encode(fields) + b"\n"
        try:
            written = os.write(self._open(), data)
            if written != len(data):
                raise OSError("cut")
        except OSError as error:
            self._complain(error, entry)

    def _open(self) -> int:
        """OSError."""
        if self._fd >= 0:
            with contextlib.suppress(FileNotFoundError):
                there, ours = self._path.stat(), os.fstat(self._fd)
                if (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino):
                    return self._fd
            os.close(self._fd)
            self._fd = -1
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        self._fd = os.open(self._path, flags, _MODE)
        return self._fd

    def _complain(self, error: OSError, entry: AuditEntry) -> None:
        now = time.monotonic()
        if now >= self._complained_at + _COMPLAINT_INTERVAL_S:
            self._complained_at = now
            _log.error("%s cannot be written (%s): what clients change is told here", self._path, error)
        _log.warning("%s", entry)


def set_up_audit(path: str, source: str) -> None:
    """ "": entries are lines of the log. Else they are in the file, whatever the level of the log is, and not there."""
    if not path:
        return
    logger = logging.getLogger(LOGGER)
    logger.addHandler(AuditFile(path, source))
    logger.setLevel(logging.INFO)
    logger.propagate = False
