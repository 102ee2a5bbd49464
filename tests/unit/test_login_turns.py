"""Passwords: who waits for whom. Two real workers; clients come from several addresses of this host."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from shardd.config.passwords import PasswordHash
from shardd.protocol import account_requests
from shardd.protocol.codes import Code
from shardd.runtime import password_hash
from tests.support import wire
from tests.support.wire import Wire
from tests.unit.services_harness import Workers

FIRST_WAIT_S, FREE = 0.05, 6  # 5 and one for the second shard


@pytest.fixture
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with Workers(tmp_path_factory.mktemp("data"), shards=2) as running:
        running.create_user("plain")
        running.create_user("other")
        started = time.monotonic()
        for shard in range(2):  # counts are halved when a minute ends: none does during a test
            running.context(shard).login_turns._clock = lambda: 60_000 + time.monotonic() - started
        yield running


def login(name: str, password: str) -> bytes:
    return wire.str8(name) + wire.str8(password) + bytes(8)


def attempt(workers: Workers, source: str, name: str, password: str, shard: int = 0) -> tuple[int, float]:
    """The status of one login on a connection of its own, and how long it took."""
    connection = workers.anonymous(shard, source)
    started = time.monotonic()
    status = connection.status(Code.LOGIN_USER, login(name, password))
    connection.close()
    return status, time.monotonic() - started


def begin(workers: Workers, source: str, name: str, password: str, shard: int = 0) -> Wire:
    """A login that is not waited for."""
    connection = workers.anonymous(shard, source)
    connection.send_bytes(wire.frame(Code.LOGIN_USER, login(name, password)))
    return connection


def wait_until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@contextmanager
def thread_held(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The threads of the passwords stand still inside their first one; the passwords that they have taken, in order."""
    seen: list[str] = []
    go, verify = threading.Event(), password_hash.verify_password

    def slowly(password_hash: str, password: str) -> bool:
        seen.append(password)
        go.wait(60)
        return verify(password_hash, password)

    monkeypatch.setattr(password_hash, "verify_password", slowly)  # to the end of the test
    try:
        yield seen
    finally:
        go.set()


def test_wrong_logins_of_one_address_do_not_delay_right_logins_of_others(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    with thread_held(monkeypatch) as seen:
        crowd = [begin(workers, "127.0.0.9", "iggy", f"wrong {number}") for number in range(40)]
        wait_until(lambda: workers.passwords_waiting() == 39)
        others = [begin(workers, f"127.0.0.{host}", "plain", "secret") for host in range(2, 8)]
        wait_until(lambda: workers.passwords_waiting() == 45)
    for other in others:
        assert other.reply()[0] == 0
    assert seen[0] == "wrong 0"
    assert len([password for password in seen if password != "secret"]) <= 3, "a crowd waits among itself"
    for one in crowd:
        one.close()


def test_a_crowd_of_many_addresses_delays_a_new_one_by_a_few_turns(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = [f"127.0.4.{host}" for host in range(1, 9)]
    for host in hosts:
        for name in ("root", "admin"):
            assert attempt(workers, host, name, "guess")[0] == 42
    with thread_held(monkeypatch) as seen:
        crowd = [begin(workers, host, "other", f"wrong {host} {n}") for n in range(4) for host in hosts]
        wait_until(lambda: workers.passwords_waiting() == 31)
        newcomers = [begin(workers, f"127.0.5.{host}", "plain", "secret") for host in range(1, 3)]
        wait_until(lambda: workers.passwords_waiting() == 33)
    for newcomer in newcomers:
        assert newcomer.reply()[0] == 0
    last = len(seen) - seen[::-1].index("secret")
    assert last <= 6, "two of them, and what had a turn beside them"
    for one in crowd:
        one.close()


def test_within_an_address_accounts_take_turns(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    with thread_held(monkeypatch) as seen:
        crowd = [begin(workers, "127.0.0.9", "iggy", f"wrong {number}") for number in range(40)]
        wait_until(lambda: workers.passwords_waiting() == 39)
        neighbour = begin(workers, "127.0.0.9", "plain", "secret")
        wait_until(lambda: workers.passwords_waiting() == 40)
    assert neighbour.reply()[0] == 0
    assert seen.index("secret") <= 2
    for one in crowd:
        one.close()


def test_an_own_account_does_not_clear_what_failed_at_its_address(workers: Workers) -> None:
    """Whoever guesses between logins that succeed, on whichever shard, is slowed down all the same."""
    for guess in range(FREE + 2):
        assert attempt(workers, "127.0.0.9", "iggy", f"guess {guess}", guess % 2)[0] == 42
        assert attempt(workers, "127.0.0.9", "plain", "secret", guess % 2)[0] == 0
    status, seconds = attempt(workers, "127.0.0.9", "iggy", "next guess")
    assert (status, seconds >= FIRST_WAIT_S * 4) == (42, True)
    status, seconds = attempt(workers, "127.0.0.9", "iggy", "the one after it", 1)
    assert (status, seconds >= FIRST_WAIT_S * 8) == (42, True)


def test_a_right_password_is_never_answered_with_42(workers: Workers) -> None:
    """Behind a bad neighbour: an account that has been there before, one that has not, and a token."""
    token = account_requests.CreateTokenRequest("abc", 0).encode()
    owner = workers.connect(0, "other", "secret")
    (length,) = struct.unpack_from("<B", answer := owner.request(Code.CREATE_PERSONAL_ACCESS_TOKEN, token))
    assert attempt(workers, "127.0.0.9", "plain", "secret", 1)[0] == 0
    for guess in range(10):
        assert attempt(workers, "127.0.0.9", "iggy", f"guess {guess}", guess % 2)[0] == 42
    crowd = [begin(workers, "127.0.0.9", "iggy", f"guess {number}") for number in range(60)]
    time.sleep(0.3)  # all of them wait by then, or most
    for shard in range(2):
        with_token = workers.anonymous(shard, "127.0.0.9")
        assert with_token.status(Code.LOGIN_WITH_PERSONAL_ACCESS_TOKEN, wire.str8(answer[1 : 1 + length].decode())) == 0
        assert attempt(workers, "127.0.0.9", "plain", "secret", shard)[0] == 0
    assert attempt(workers, "127.0.0.9", "other", "secret")[0] == 0
    for one in crowd:
        one.close()


def test_guesses_from_everywhere_neither_lock_an_account_out_nor_stay_free(workers: Workers) -> None:
    assert attempt(workers, "127.0.0.2", "iggy", "iggy")[0] == 0
    for host in range(8):
        assert attempt(workers, f"127.0.1.{host}", "iggy", "guess", host % 2)[0] == 42
    status, seconds = attempt(workers, "127.0.2.1", "iggy", "first guess of a new address")
    assert (status, seconds >= FIRST_WAIT_S * 4) == (42, True)
    assert attempt(workers, "127.0.3.1", "iggy", "iggy")[0] == 0, "root from a new address waits and is let in"
    assert attempt(workers, "127.0.1.1", "plain", "secret")[0] == 0
    for source in ("127.0.0.2", "127.0.3.1"):  # where root has been before
        for shard in range(2):
            assert workers.context(shard).login_turns.failures(f"{source}:1", "iggy") == 0
            assert attempt(workers, source, "iggy", "iggy", shard)[0] == 0


def test_logins_that_wait_hold_nothing_that_others_need(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker has 256 receive buffers."""
    with thread_held(monkeypatch):
        crowd = [begin(workers, "127.0.0.9", "iggy", "wrong") for _ in range(300)]
        wait_until(lambda: workers.passwords_waiting() == 299)
        for _ in range(3):
            workers.anonymous(0, "127.0.0.8").ping()
        for one in crowd:
            one.close()


def test_guesses_of_a_password_to_be_changed_cost_like_logins(workers: Workers) -> None:
    me = workers.connect(0, "plain", "secret")

    def change(current: str) -> tuple[int, float]:
        started = time.monotonic()
        request = account_requests.ChangePasswordRequest("plain", current, "secret").encode()
        return me.status(Code.CHANGE_PASSWORD, request), time.monotonic() - started

    for guess in range(FREE + 1):
        assert change(f"guess {guess}")[0] == 42
    status, seconds = change("next guess")
    assert (status, seconds >= FIRST_WAIT_S * 2) == (42, True)
    status, seconds = attempt(workers, "127.0.0.1", "plain", "as a login", 1)
    assert (status, seconds >= FIRST_WAIT_S * 4) == (42, True)
    assert change("secret")[0] == 0
    assert workers.context().login_turns.failures("127.0.0.1:1", "plain") == 0


def test_an_unknown_name_costs_what_a_known_one_costs(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same hash function with the same parameters, once each."""
    costs: list[str] = []
    verify = password_hash.verify_password

    def counted(hashed: str, password: str) -> bool:
        costs.append(hashed.rpartition("$")[0].rpartition("$")[0])
        return verify(hashed, password)

    monkeypatch.setattr(password_hash, "verify_password", counted)
    for name in ("plain", "nobody has this name"):
        assert attempt(workers, "127.0.0.9", name, "wrong")[0] == 42
    assert costs == ["$argon2id$v=19$m=19456,t=2,p=1"] * 2


def test_login_of_an_inactive_user_costs_what_that_of_another_user_costs(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its status is recorded (golden `login-inactive`), its time is not."""
    workers.create_user("asleep", active=False)
    seen: list[str] = []
    verify = password_hash.verify_password

    def counted(password_hash: str, password: str) -> bool:
        seen.append(password)
        return verify(password_hash, password)

    monkeypatch.setattr(password_hash, "verify_password", counted)
    for password in ("secret", "wrong"):
        assert attempt(workers, "127.0.0.9", "asleep", password)[0] == 47
    assert seen == ["secret", "wrong"]


def test_unknown_names_cost_what_users_do_after_the_cost_was_changed(workers: Workers) -> None:
    context = workers.context()
    context.passwords._cost = PasswordHash(1 << 20, 1)
    workers.create_user("newcomer")
    known = {user.password_hash for user in context.metadata.state.users.values()}
    chosen = {name: context.services.logins._like(name) for name in map(str, range(500))}
    assert set(chosen.values()) == known
    assert len({each.rpartition("$")[0].rpartition("$")[0] for each in known}) == 2
    assert chosen == {name: context.services.logins._like(name) for name in chosen}, "a name always costs the same"


def test_who_waits_is_told_when_the_server_stops(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    with thread_held(monkeypatch) as seen:
        waiting = [begin(workers, "127.0.0.9", "iggy", f"wrong {number}") for number in range(5)]
        wait_until(lambda: workers.passwords_waiting() == 4 and len(seen) == 1)
        workers.call(_close_turns(workers))
        assert [one.reply()[0] for one in waiting[1:]] == [8] * 4
        assert attempt(workers, "127.0.0.8", "iggy", "iggy")[0] == 8
    assert waiting[0].reply()[0] == 42


async def _close_turns(workers: Workers) -> None:
    workers.context().login_turns.close()
