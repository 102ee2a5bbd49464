"""Which boot of the machine this is."""

from __future__ import annotations

from pathlib import Path
from typing import Final

BOOT_TEXT_BYTES: Final = 36
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def boot_text() -> bytes:
    """As the kernel tells it, 36 characters; zeros where nobody tells it."""
    try:
        text = _BOOT_ID.read_bytes().strip()
    except OSError:
        text = b""
    return text if len(text) == BOOT_TEXT_BYTES else bytes(BOOT_TEXT_BYTES)


def boot_id() -> bytes:
    """The same in 16 bytes; none where nobody tells it."""
    text = boot_text()
    return bytes.fromhex(text.decode().replace("-", "")) if any(text) else b""
