"""No password and no token in clear text: below the data directory (also in what only a running server has there), in
the logs, and in what a snapshot tells."""

from __future__ import annotations

from pathlib import Path

from shardd.protocol import account_requests
from shardd.protocol.account_requests import SnapshotCompression, SnapshotType
from shardd.protocol.codes import Code
from tests.support import wire
from tests.support.archives import archive_members
from tests.support.server import Server
from tests.support.wire import Wire

ROOT_PASSWORD = "correct-horse-battery"
PASSWORDS = ("staple-of-bob", "next-staple-of-bob")
GUESSES = ("bad-guess-of-eve", "bad-change-of-eve", "bad-token-of-eve")


def files_with(directory: Path, text: bytes) -> list[str]:
    return [str(path) for path in directory.rglob("*") if path.is_file() and text in path.read_bytes()]


def requests_with_secrets(root: Wire, server: Server) -> list[str]:
    """Does everything that carries a secret, right and wrong; the texts of the tokens."""
    root.request(Code.CREATE_USER, account_requests.CreateUser("bob", PASSWORDS[0], 1).encode())
    root.request(Code.CHANGE_PASSWORD, account_requests.ChangePassword("bob", *PASSWORDS).encode())
    change = account_requests.ChangePassword("bob", GUESSES[1], "x-" + GUESSES[1])
    assert root.status(Code.CHANGE_PASSWORD, change.encode()) == 42
    again = account_requests.CreateUser("bob", PASSWORDS[0], 1)
    assert root.status(Code.CREATE_USER, again.encode()) == 46
    tokens = []
    for name, expiry_us in (("ci_token", 0), ("short_token", 1)):
        create = account_requests.CreateToken(name, expiry_us).encode()
        tokens.append(root.request(Code.CREATE_PERSONAL_ACCESS_TOKEN, create)[1:].decode())
    root.create_stream("st")
    with Wire(server.address) as bob:
        assert bob.status(Code.LOGIN_USER, wire.str8("bob") + wire.str8(GUESSES[0]) + bytes(8)) == 42
        assert bob.status(Code.LOGIN_USER, wire.str8("nobody") + wire.str8(GUESSES[0]) + bytes(8)) == 42
        assert bob.status(Code.LOGIN_WITH_PERSONAL_ACCESS_TOKEN, wire.str8(GUESSES[2])) == 20
        assert bob.status(Code.LOGIN_WITH_PERSONAL_ACCESS_TOKEN, wire.str8(tokens[1])) in (20, 54)
        assert bob.status(Code.LOGIN_WITH_PERSONAL_ACCESS_TOKEN, wire.str8(tokens[0])) == 0
        bob.login("bob", PASSWORDS[1])
    return tokens


def test_no_secret_reaches_the_disk_the_logs_or_a_snapshot(tmp_path: Path) -> None:
    credentials = {"SHARDD_ROOT_USERNAME": "admin", "SHARDD_ROOT_PASSWORD": ROOT_PASSWORD}
    server = Server(tmp_path / "data", env=credentials | {"SHARDD_SYSTEM_LOGGING_LEVEL": "debug"}, arguments=())
    with server:
        with Wire(server.address) as root:
            root.login("admin", ROOT_PASSWORD)
            tokens = requests_with_secrets(root, server)
            snapshot = account_requests.GetSnapshot(SnapshotCompression.ZSTD, (SnapshotType.ALL,)).encode()
            told = b"".join(content for _name, content in archive_members(root.request(Code.GET_SNAPSHOT, snapshot)))
        secrets = [text.encode() for text in (ROOT_PASSWORD, *PASSWORDS, *GUESSES, *tokens)]
        for secret in secrets:  # while it runs: current_config.toml is there
            assert files_with(tmp_path, secret) == [], secret
            assert secret not in told
        (config,) = files_with(tmp_path, b"max_tokens_per_user")
        assert config.endswith("current_config.toml") and b"max_tokens_per_user" in told
        assert files_with(tmp_path, b"refused with 42") == [str(server.log_path)] and b"refused with 42" in told
    for secret in secrets:
        assert files_with(tmp_path, secret) == [], secret
    assert files_with(tmp_path, b"ci_token") != [], "the search would find it"
    with server, Wire(server.address) as connection:  # what is stored is enough to log in again
        connection.login("bob", PASSWORDS[1])
        assert connection.status(Code.LOGIN_WITH_PERSONAL_ACCESS_TOKEN, wire.str8(tokens[0])) == 0
