"""What a crowd says of itself when it ends: a crowd that did nothing would leave everybody alone."""

from __future__ import annotations

from typing import Final

import msgspec

ROUND_S: Final = 0.5


class Report(msgspec.Struct):
    """`entered`: connections that came in, in all. `heard`: reads (of QUIC answers) that brought something."""

    entered: int = 0
    lost: int = 0
    sent_bytes: int = 0
    heard: int = 0
