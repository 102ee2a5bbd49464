"""How a server runs that is fuzzed."""

from __future__ import annotations

from typing import Final

LOGIN_TIMEOUT: Final = "1 h"
SETTINGS: Final = {
    "SHARDD_SYSTEM_MEMORY_POOL_SIZE": "256 MiB",
    "SHARDD_SYSTEM_SEGMENT_SIZE": "1 MiB",
    # Lanes without a login live from one cleaning to the next, minutes under sanitizers: an unasked 40 is an answer too
    # much (docs/protocol/sessions.md#unasked).
    "SHARDD_SERVER_LOGIN_TIMEOUT": LOGIN_TIMEOUT,
}
