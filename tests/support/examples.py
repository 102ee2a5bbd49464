"""The frames of docs/protocol/examples.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).parents[2] / "docs" / "protocol" / "examples.md"
_BLOCK: Final = re.compile(r"^```(request|response)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def frames(kind: str) -> list[bytes]:
    """Every `request` or `response` of the page, in its order; what stands behind a `|` is for the reader."""
    return [
        b"".join(bytes.fromhex(line.partition("|")[0]) for line in body.splitlines())
        for found, body in _BLOCK.findall(PAGE.read_text())
        if found == kind
    ]
