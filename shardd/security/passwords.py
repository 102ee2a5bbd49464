"""Password hashes without blocking a loop (shardd/runtime/password_hash.py)."""

from __future__ import annotations

from shardd.config.passwords import DEFAULT, PasswordHash
from shardd.runtime import password_hash as hashes
from shardd.runtime.threads import Threads


class Passwords:
    """In helper threads. `threads` should do nothing else: logins must not delay other work. `cost`: of new hashes."""

    def __init__(self, threads: Threads, cost: PasswordHash = DEFAULT) -> None:
        self._threads, self._cost = threads, cost

    async def hash(self, password: str) -> str:
        """A PHC string with a new random salt."""
        return await self._threads.run(hashes.hash_password, password, self._cost)

    async def verify(self, password_hash: str, password: str) -> bool:
        """True when `password` is the one of the PHC string `password_hash`."""
        return await self._threads.run(hashes.verify_password, password_hash, password)

    async def verify_nothing(self, like: str, password: str) -> None:
        """The cost of `verify` of the PHC string `like` where there is no hash."""
        await self._threads.run(hashes.verify_nothing, like, password)
