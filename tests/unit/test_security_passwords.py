"""Argon2id hashes in helper threads."""

from __future__ import annotations

import asyncio

from shardd.runtime.helper_threads import HelperThreads
from shardd.runtime.password_hash import hash_password, verify_password
from shardd.security import Passwords


def test_the_parameters_stand_in_the_hash() -> None:
    assert hash_password("secret").startswith("$argon2id$v=19$m=19456,t=2,p=1$")


def test_each_hash_has_its_own_salt() -> None:
    first, second = hash_password("secret"), hash_password("secret")
    assert first != second
    assert verify_password(first, "secret")
    assert verify_password(second, "secret")


def test_whatever_does_not_match_is_false_and_no_exception() -> None:
    good = hash_password("secret")
    assert not verify_password(good, "Secret")
    assert not verify_password(good, "")
    for broken in ("", "plain", "$argon2id$", good[:-4], good.replace("19456", "0")):
        assert not verify_password(broken, "secret")


def test_the_loop_goes_on_while_passwords_are_verified() -> None:
    async def scenario() -> None:
        threads = HelperThreads(2)
        passwords = Passwords(threads)
        hashed = await passwords.hash("secret")
        checks = asyncio.gather(*(passwords.verify(hashed, password) for password in ("secret", "wrong") * 5))
        turns = 0
        while not checks.done():
            await asyncio.sleep(0.001)
            turns += 1
        assert await checks == [True, False] * 5
        assert turns > 5, "the loop waited for the hashes"
        await threads.close()

    asyncio.run(asyncio.wait_for(scenario(), 30))
