"""What strangers make the door keep, in bytes: one number for all, at most half of it for one user."""

from __future__ import annotations

from collections import Counter
from typing import Final

USER_SHARE: Final = 2


class Pool:
    """Loop thread only. It counts; who fills it is asked to look."""

    def __init__(self, bytes_max: int) -> None:
        self._max = bytes_max
        self._of: Counter[int] = Counter()
        self.used_bytes = 0

    def change(self, user_id: int, more: int) -> None:
        if more:
            self.used_bytes += more
            self._of[user_id] += more
            if not self._of[user_id]:
                del self._of[user_id]

    def is_full(self, user_id: int, more: int = 0) -> bool:
        """Whether the user has no room for so many bytes."""
        return self.used_bytes + more > self._max or self._of.get(user_id, 0) + more > self._max // USER_SHARE
