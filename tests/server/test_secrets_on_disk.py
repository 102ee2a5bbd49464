"""No password and no token in clear text below the data directory or in the logs (iggy-server 9, scenario 54)."""

from __future__ import annotations

from pathlib import Path

from shardd.protocol import account_requests
from shardd.protocol.codes import Code
from tests.support import wire
from tests.support.server import Server
from tests.support.wire import Wire

ROOT_PASSWORD = "correct-horse-battery"
PASSWORDS = ("staple-of-bob", "next-staple-of-bob")


def files_with(directory: Path, text: bytes) -> list[str]:
    return [str(path) for path in directory.rglob("*") if path.is_file() and text in path.read_bytes()]


def test_no_secret_reaches_the_disk(tmp_path: Path) -> None:
    credentials = {"SHARDD_ROOT_USERNAME": "admin", "SHARDD_ROOT_PASSWORD": ROOT_PASSWORD}
    server = Server(tmp_path / "data", env=credentials | {"SHARDD_SYSTEM_LOGGING_LEVEL": "debug"}, arguments=())
    with server:
        with Wire(server.address) as root:
            root.login("admin", ROOT_PASSWORD)
            root.request(Code.CREATE_USER, account_requests.CreateUser("bob", PASSWORDS[0], 1).encode())
            root.request(Code.CHANGE_PASSWORD, account_requests.ChangePassword("bob", *PASSWORDS).encode())
            token = root.request(
                Code.CREATE_PERSONAL_ACCESS_TOKEN, account_requests.CreateToken("ci_token", 0).encode()
            )
            root.request(Code.GET_SNAPSHOT, b"\x02\x01\x64")
            root.create_stream("st")
        with Wire(server.address) as bob:
            assert bob.status(Code.LOGIN_USER, wire.str8("bob") + wire.str8("bad-guess-of-eve") + bytes(8)) == 42
            bob.login("bob", PASSWORDS[1])
    text = token[1:].decode()
    for secret in (ROOT_PASSWORD, *PASSWORDS, "bad-guess-of-eve", text):
        assert files_with(tmp_path, secret.encode()) == [], secret
    assert files_with(tmp_path, b"ci_token") != [], "the search would find it"
    with server, Wire(server.address) as connection:  # what is stored is enough to log in again
        connection.login("bob", PASSWORDS[1])
        assert connection.status(Code.LOGIN_WITH_PERSONAL_ACCESS_TOKEN, wire.str8(text)) == 0
