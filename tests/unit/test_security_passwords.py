"""Argon2id hashes in helper threads."""

from __future__ import annotations

import asyncio

import pytest

from shardd.config.passwords import PasswordHash
from shardd.runtime import password_hash
from shardd.runtime.helper_threads import HelperThreads
from shardd.runtime.password_hash import hash_password, verify_nothing, verify_password
from shardd.security import Passwords


def test_the_parameters_stand_in_the_hash() -> None:
    assert hash_password("secret").startswith("$argon2id$v=19$m=19456,t=2,p=1$")


def test_a_hash_of_another_cost_is_verified_as_it_says() -> None:
    hashed = hash_password("secret", PasswordHash(1 << 20, 3))
    assert hashed.startswith("$argon2id$v=19$m=1024,t=3,p=1$")
    assert verify_password(hashed, "secret")
    assert not verify_password(hashed, "Secret")


@pytest.mark.parametrize("cost", [PasswordHash(1 << 20, 3), PasswordHash()])
def test_an_unknown_name_costs_what_a_known_one_does(cost: PasswordHash, monkeypatch: pytest.MonkeyPatch) -> None:
    known, verified = hash_password("secret", cost), list[str]()
    monkeypatch.setattr(password_hash, "verify_password", lambda hashed, _password: verified.append(hashed))
    verify_nothing(known, "secret")
    verify_nothing("", "secret")
    assert [len(each) for each in verified] == [len(known), len(hash_password(""))]
    assert verified[0].split("$")[:4] == known.split("$")[:4], "algorithm, version, memory, passes"
    assert verified[0] != known
    assert verified[1].split("$")[:4] == hash_password("").split("$")[:4]


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
