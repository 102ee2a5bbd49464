"""The client over TLS and a Unix socket, and what it says when one side does not trust the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardd.client import SyncClient
from shardd.client.errors import SettingsError, TlsError
from shardd.client.settings import Settings, parse
from tests.conftest import MakeServer
from tests.server.test_tls import NAMES, cli
from tests.support.certificates import Authority, settings
from tests.support.server import ONE_SHARD, Server


def test_connection_strings_name_the_way() -> None:
    assert parse("shardd+tls://h") == Settings("h", tls=True)
    assert parse("shardd+tls://n:p@h:1?ca_file=%2Fa&certificate_file=b&key_file=c&server_name=d&window=2") == Settings(
        "h", 1, "n", "p", window=2, tls=True, ca_file="/a", certificate_file="b", key_file="c", server_name="d"
    )
    assert parse("shardd+unix:///run/s.sock") == Settings(unix_path="/run/s.sock")
    assert parse("shardd+unix://n:p@/run/s.sock") == Settings(unix_path="/run/s.sock", username="n", password="p")
    for wrong in ("shardds://h", "shardd+unix://h/x", "shardd+unix://", "shardd://h?ca_file=a", "shardd+tls://h/x"):
        with pytest.raises(SettingsError):
            parse(wrong)


def url(server: Server, authority: Path, options: str = "") -> str:
    port = server.address.rpartition(":")[2]
    return f"shardd+tls://iggy:iggy@localhost:{port}?ca_file={authority}{options}"


def run_ping(address: str) -> tuple[int, str]:
    done = cli("ping", "--address", address, env={})
    return done.returncode, done.stderr


def refused(address: str) -> str:
    with pytest.raises(TlsError) as error, SyncClient(address) as client:
        client.ping()
    text = str(error.value)
    assert "\n" not in text and not error.value.retryable
    return text


def test_what_is_trusted_is_served_and_the_rest_is_told_in_a_sentence(tmp_path: Path, make_server: MakeServer) -> None:
    authority, other = Authority.make(tmp_path), Authority.make(tmp_path, "other")
    server = make_server(env=settings(authority.sign("server", names=NAMES)) | ONE_SHARD)
    trusted = authority.certificate
    with SyncClient(url(server, trusted)) as client:
        client.create_stream("over tls")
    with SyncClient(url(server, trusted).replace("localhost", "127.0.0.1")) as client:
        client.ping()
    assert "its certificate is not trusted" in refused(url(server, other.certificate))
    ours = url(server, trusted).replace("iggy:iggy@", "")
    assert run_ping(ours) == (0, "")
    code, told = run_ping(url(server, other.certificate).replace("iggy:iggy@", ""))
    assert code == 1 and "its certificate is not trusted" in told and told.count("\n") == 1
    listed = cli("stream", "list", "--url", url(server, other.certificate), env={})
    assert listed.returncode == 6 and "its certificate is not trusted" in listed.stderr
    assert listed.stderr.count("\n") == 1
    assert "wrong.example" in refused(url(server, trusted, "&server_name=wrong.example"))
    assert "No such file" in refused(url(server, tmp_path / "missing.pem"))
    text = tmp_path / "text.pem"
    text.write_text("no certificate")
    assert "no certificate, or no key that fits it" in refused(url(server, text))
    assert "no certificate, or no key that fits it" in refused(url(server, trusted, f"&certificate_file={trusted}"))


def test_an_expired_certificate_is_told(tmp_path: Path, make_server: MakeServer) -> None:
    authority = Authority.make(tmp_path)
    server = make_server(env=settings(authority.sign("expired", names=NAMES, days=-1)) | ONE_SHARD)
    assert "certificate has expired" in refused(url(server, authority.certificate))


@pytest.mark.parametrize("version", ["1.2", "1.3"])
def test_certificates_of_clients(tmp_path: Path, make_server: MakeServer, version: str) -> None:
    authority, other = Authority.make(tmp_path), Authority.make(tmp_path, "other")
    env = settings(
        authority.sign("server", names=NAMES),
        client_certificates="required",
        client_ca_file=str(authority.certificate),
        client_users="CN:alice=iggy",
        min_version=version,
    )
    server = make_server(env=env | ONE_SHARD)

    def shows(certificate: Path) -> str:
        more = f"&certificate_file={certificate}&key_file={certificate.with_suffix('.key')}"
        return url(server, authority.certificate, more).replace("iggy:iggy@", "")

    with SyncClient(shows(authority.sign("alice"))) as client:
        client.create_stream("of alice")  # without a login
    assert "wants a certificate of this client" in refused(url(server, authority.certificate))
    assert "does not trust who signed" in refused(shows(other.sign("stranger")).replace("://", "://iggy:iggy@"))


def test_a_unix_socket_is_a_way_like_any_other(tmp_path: Path, make_server: MakeServer) -> None:
    path = tmp_path / "s.sock"
    tmp_path.chmod(0o700)
    make_server(env=ONE_SHARD | {"SHARDD_UNIX_PATH": str(path)})
    with SyncClient(f"shardd+unix://iggy:iggy@{path}") as client:
        client.create_stream("over a path")
