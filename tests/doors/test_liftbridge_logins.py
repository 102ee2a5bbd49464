"""Who may do what through the door for Liftbridge: every method with every kind of login, TLS with certificates of
clients, and what strangers may cost."""

from __future__ import annotations

import base64
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2

from shardd.protocol.liftbridge import api
from shardd.protocol.permissions import Permissions
from tests.doors.liftbridge_server import (
    HOST,
    ROOT,
    WAIT_S,
    EndedError,
    LiftbridgeClient,
    LiftbridgeServer,
    ended,
)
from tests.support import wire
from tests.support.certificates import Authority
from tests.support.serving import Serving

CALLS: Final[dict[str, dict[str, Any]]] = {
    "CreateStream": {"name": "fresh", "subject": "fresh"},
    "DeleteStream": {"name": "s"},
    "PauseStream": {"name": "s"},
    "SetStreamReadonly": {"name": "s", "partitions": [1], "readonly": True},
    "Subscribe": {"stream": "s", "startPosition": 2, "stopPosition": 1},
    "FetchMetadata": {},
    "FetchPartitionMetadata": {"stream": "s"},
    "Publish": {"stream": "s", "value": b"x"},
    "PublishAsync": {"stream": "s", "value": b"x"},
    "PublishToSubject": {"subject": "s", "value": b"x"},
    "SetCursor": {"stream": "s", "cursorId": "c"},
    "FetchCursor": {"stream": "s", "cursorId": "c"},
    "JoinConsumerGroup": {"groupId": "g", "consumerId": "new", "streams": ["s"]},
    "LeaveConsumerGroup": {"groupId": "g", "consumerId": "c"},
    "FetchConsumerGroupAssignments": {"groupId": "g", "consumerId": "c"},
    "ReportConsumerGroupCoordinator": {"groupId": "g", "consumerId": "c", "coordinator": "other"},
}
CHANGES: Final = {"CreateStream", "DeleteStream", "PauseStream", "SetStreamReadonly"}
SENDS: Final = {"Publish", "PublishAsync", "PublishToSubject"}
READS: Final = {
    "Subscribe", "FetchPartitionMetadata", "SetCursor", "FetchCursor", "JoinConsumerGroup", "LeaveConsumerGroup",
    "FetchConsumerGroupAssignments", "ReportConsumerGroupCoordinator",
}  # fmt: skip
DENIED, STRANGER = "PERMISSION_DENIED", "UNAUTHENTICATED"


def fill(server: LiftbridgeServer) -> None:
    with server.client(ROOT) as root:
        root.create("s", 2)
        root.publish("s", b"x")
        root.call("JoinConsumerGroup", groupId="g", consumerId="c", streams=["s"])
    server.create_user("nobody", Permissions())
    server.create_user("reader", Permissions(read_streams=True))
    server.create_user("sender", Permissions(send_messages=True))


SERVER: Final = Serving(
    LiftbridgeServer, {"SHARDD_LIFTBRIDGE_ANONYMOUS_USER": "", "SHARDD_SERVER_PARTIAL_FRAME_TIMEOUT": "3 s"}, fill=fill
)


def outcome(client: LiftbridgeClient, method: str) -> str:
    """The status that a call ends with: OK where it is let in. Groups of others are not there."""
    fields = CALLS[method]
    try:
        if method == "Subscribe":
            with client.subscribe(**fields) as subscription:
                status = subscription.end()[0]
                return "OK" if status == "RESOURCE_EXHAUSTED" else status
        if method == "PublishAsync":
            [response] = client.publish_async([fields])
            return {0: "OK", 7: DENIED}[response.asyncError.code]
        status, text = client.status(method, **fields)
    except EndedError as error:
        return error.status[0]
    hidden = text in ("consumer group does not exist", "No such consumer group g")
    return DENIED if hidden else status if status in (DENIED, STRANGER) else "OK"


@pytest.mark.parametrize("method", api.METHODS)
def test_nobody_without_a_login_gets_in(server: LiftbridgeServer, method: str) -> None:
    bad = [
        (),
        (("authorization", "Bearer nothing"),),
        (("authorization", "Basic " + base64.b64encode(b"iggy:wrong").decode()),),
        (("authorization", "Basic not base64"),),
        (("authorization", "Digest x"),),
        (ROOT, ROOT),
    ]
    for metadata in bad if method == "FetchMetadata" else bad[:2]:
        with server.client(*metadata) as client:
            assert outcome(client, method) == STRANGER, metadata


@pytest.mark.parametrize("method", api.METHODS)
def test_the_rights_of_each_method(server: LiftbridgeServer, method: str) -> None:
    expected = {"nobody": set[str](), "reader": READS, "sender": SENDS}
    for name, allowed in expected.items():
        with server.logged_in(name) as client, server.client(ROOT) as root:
            root.status("JoinConsumerGroup", groupId="g", consumerId="c", streams=["s"])  # it may be there
            wanted = "OK" if method in allowed or method == "FetchMetadata" else DENIED
            assert outcome(client, method) == wanted, name


def test_metadata_shows_what_its_reader_may_see(server: LiftbridgeServer) -> None:
    seen = {}
    for name in ("nobody", "reader"):
        with server.logged_in(name) as client:
            seen[name] = {each.name for each in client.call("FetchMetadata").streamMetadata}
            [asked] = client.call("FetchMetadata", streams=["s"]).streamMetadata
            assert asked.error == (name == "nobody")
    assert seen == {"nobody": set(), "reader": {"__cursors", "s"}}


def test_tokens_of_every_kind(server: LiftbridgeServer) -> None:
    with wire.connect(server.address) as tcp:
        token = tcp.create_token("liftbridge")
    with server.client(("authorization", f"Bearer {token}")) as client:
        assert client.status("FetchPartitionMetadata", stream="s") == ("OK", "")


def test_a_user_who_is_deleted_is_nobody_at_once(server: LiftbridgeServer) -> None:
    server.create_user("leaves", Permissions(read_streams=True))
    with server.logged_in("leaves") as client, wire.connect(server.address) as tcp:
        assert client.status("FetchMetadata") == ("OK", "")
        tcp.request(34, wire.identifier("leaves"))
        deadline = time.monotonic() + 30
        while client.status("FetchMetadata")[0] != STRANGER:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_health_needs_no_login(server: LiftbridgeServer) -> None:
    with server.client() as client:
        health(client)


def test_the_anonymous_user_has_its_rights_and_no_more(tmp_path: Path) -> None:
    settings = {"SHARDD_LIFTBRIDGE_ANONYMOUS_USER": "reader"}
    with LiftbridgeServer(tmp_path / "data", settings) as server:
        with server.client() as client:
            assert client.status("FetchMetadata")[0] == STRANGER  # there is no such user
            server.create_user("reader", Permissions(read_streams=True))
            assert client.status("FetchMetadata") == ("OK", "")
            assert client.status("CreateStream", name="s", subject="s")[0] == DENIED
        with server.client(ROOT) as root:
            root.create("s")


# ---- TLS ----


def test_tls_with_certificates_of_clients_and_newer_ones(tmp_path: Path) -> None:
    authority, other = Authority.make(tmp_path, "authority"), Authority.make(tmp_path, "other")
    certificate = authority.sign("server", names="DNS:localhost,IP:127.0.0.1")
    member, stranger = authority.sign("member"), other.sign("stranger")
    settings = {
        "SHARDD_LIFTBRIDGE_TLS_ENABLED": "true",
        "SHARDD_LIFTBRIDGE_TLS_CERT_FILE": str(certificate),
        "SHARDD_LIFTBRIDGE_TLS_KEY_FILE": str(certificate.with_suffix(".key")),
        "SHARDD_LIFTBRIDGE_TLS_CLIENT_CA_FILE": str(authority.certificate),
    }

    def serves(server: LiftbridgeServer, trusted: Authority, shown: Path | None) -> bool:
        pair = {} if shown is None else {
            "private_key": shown.with_suffix(".key").read_bytes(),
            "certificate_chain": shown.read_bytes(),
        }  # fmt: skip
        credentials = grpc.ssl_channel_credentials(trusted.certificate.read_bytes(), **pair)
        with server.client(credentials=credentials) as client:
            try:
                client.channel.unary_unary(f"/{api.SERVICE}/FetchMetadata")(b"", timeout=10)
            except grpc.RpcError as error:
                assert ended(error)[0] == "UNAVAILABLE"
                return False
            return True

    with LiftbridgeServer(tmp_path / "data", settings) as server:
        assert serves(server, authority, member)
        assert not serves(server, authority, stranger)
        assert not serves(server, authority, None)
        assert not serves(server, other, member)
        newer = other.sign("newer", names="DNS:localhost,IP:127.0.0.1")
        certificate.with_suffix(".key").write_bytes(newer.with_suffix(".key").read_bytes())
        certificate.write_bytes(newer.read_bytes())
        psutil.Process(server.pid).send_signal(signal.SIGHUP)
        deadline = time.monotonic() + WAIT_S
        while not serves(server, other, member):
            assert time.monotonic() < deadline
        assert not serves(server, authority, member)


def test_tls_1_3_only_when_it_is_asked_for(tmp_path: Path) -> None:
    import ssl

    settings = {
        "SHARDD_LIFTBRIDGE_TLS_ENABLED": "true",
        "SHARDD_LIFTBRIDGE_TLS_SELF_SIGNED": "true",
        "SHARDD_TCP_TLS_MIN_VERSION": "1.3",
    }
    with LiftbridgeServer(tmp_path / "data", settings) as server:
        host, _, port = server.liftbridge_address.rpartition(":")
        for version, served in ((ssl.TLSVersion.TLSv1_2, False), (ssl.TLSVersion.TLSv1_3, True)):
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            context.set_alpn_protocols(["h2"])
            context.minimum_version = context.maximum_version = version
            with socket.create_connection((host, int(port)), timeout=10) as plain:
                try:
                    with context.wrap_socket(plain) as wrapped:
                        found = wrapped.version() == "TLSv1.3"
                except (ssl.SSLError, ConnectionError):
                    found = False
            assert found == served, version


# ---- what strangers cost ----


def test_no_connection_lands_on_the_reserved_address(server: LiftbridgeServer) -> None:
    """The supervisor is bound there, too, and never listens."""
    for _ in range(100):
        with server.client() as client:
            health(client)


def test_connections_that_say_nothing_end_and_others_are_served_beside_them(server: LiftbridgeServer) -> None:
    host, _, port = server.liftbridge_address.rpartition(":")
    door = server.door()
    before_bytes = door.memory_info().rss
    silent = [socket.create_connection((host, int(port)), timeout=30) for _ in range(100)]
    try:
        for number, each in enumerate(silent):
            each.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[: number % 24])
        with server.client() as client:
            health(client)
        for each in silent:
            each.settimeout(30)
            while each.recv(65_536):
                pass
    finally:
        for each in silent:
            each.close()
    assert door.memory_info().rss - before_bytes < 64 << 20


def test_calls_without_a_request_have_their_end(server: LiftbridgeServer) -> None:
    """They hold a place until then, and one address has not all of them."""
    with server.client(ROOT) as client:
        calls = [client.channel.stream_unary(f"/{api.SERVICE}/Publish").future(_never()) for _ in range(20)]
        assert client.status("FetchMetadata") == ("OK", "")
        for each in calls:
            each.cancel()


def test_long_metadata_is_refused(server: LiftbridgeServer) -> None:
    with server.client(("authorization", "Bearer " + "x" * 100_000)) as client:
        assert client.status("FetchMetadata")[0] in ("RESOURCE_EXHAUSTED", "INTERNAL", "UNKNOWN", "UNAVAILABLE")
    with server.client(ROOT) as client:
        assert client.status("FetchMetadata") == ("OK", "")


@pytest.mark.parametrize(
    "data", [b"\xff\xff\xff", b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x02\xff\xfe", b"\x08" + b"\xff" * 12]
)
def test_what_is_no_message_is_an_error_of_its_call(server: LiftbridgeServer, data: bytes) -> None:
    with server.client(ROOT) as client:
        for method in api.METHODS:
            if method in api.SERVER_STREAMING:
                continue
            try:
                client.call(method, raw=data)
                status = "OK"
            except EndedError as error:
                status = error.status[0]
            assert status in ("INTERNAL", "INVALID_ARGUMENT", "NOT_FOUND", "UNKNOWN", "OK"), method
        assert client.status("FetchMetadata") == ("OK", "")


def _never() -> Iterator[bytes]:
    time.sleep(1)
    yield from ()


def health(client: LiftbridgeClient) -> None:
    check = client.channel.unary_unary("/grpc.health.v1.Health/Check", None, health_pb2.HealthCheckResponse.FromString)
    assert check(b"", timeout=WAIT_S).status == health_pb2.HealthCheckResponse.SERVING


def test_the_address_is_taken_while_the_server_runs(server: LiftbridgeServer, tmp_path: Path) -> None:
    settings = {"SHARDD_LIFTBRIDGE_ADDRESS": server.liftbridge_address}
    with pytest.raises(RuntimeError, match=r"liftbridge\.address: cannot listen"):
        LiftbridgeServer(tmp_path / "data", settings).start()
    assert server.liftbridge_address.startswith(HOST)
