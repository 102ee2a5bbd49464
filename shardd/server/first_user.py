"""The password of the first user, hashed while the rest of the server starts: a worker is told its hash alone."""

from __future__ import annotations

import contextlib
import threading

from shardd.config.passwords import DEFAULT, PasswordHash
from shardd.config.root_user import RootUser


class FirstUser:
    """`beside`: hashes the password at once, in a thread of its own, for which `password_hash` waits."""

    def __init__(self, user: RootUser, cost: PasswordHash = DEFAULT, *, beside: bool) -> None:
        self.user, self._cost = user, cost
        self._hash = ""
        self._thread = threading.Thread(target=self._compute, name="first user", daemon=True) if beside else None
        if self._thread is not None:
            try:
                self._thread.start()
            except RuntimeError:  # the system has no thread for it
                self._thread = None

    def _compute(self) -> None:
        from argon2.exceptions import HashingError  # later starts do without these

        from shardd.runtime.password_hash import hash_password

        with contextlib.suppress(HashingError, MemoryError):
            self._hash = hash_password(self.user.password, self._cost)

    def password_hash(self) -> str:
        """Empty: it is not known here, and whoever needs it has to compute it."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        return self._hash
