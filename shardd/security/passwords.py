"""Password hashes without blocking a loop (shardd/runtime/password_hash.py)."""

from __future__ import annotations

from shardd.runtime import password_hash as hashes
from shardd.runtime.threads import Threads


class Passwords:
    """In helper threads. `threads` should do nothing else: logins must not delay other work."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads

    async def hash(self, password: str) -> str:
        """A PHC string with a new random salt."""
        return await self._threads.run(hashes.hash_password, password)

    async def verify(self, password_hash: str, password: str) -> bool:
        """True when `password` is the one of the PHC string `password_hash`."""
        return await self._threads.run(hashes.verify_password, password_hash, password)

    async def verify_nothing(self, password: str) -> None:
        """The cost of `verify` where there is no hash."""
        await self._threads.run(hashes.verify_nothing, password)
